"""Each rule and each generator of candidates earns its place by a recording: switched off, it changes a recorded verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.mutation.parts import parts, with_only
from support.recordings.golden import GOLDEN
from support.recordings.verdicts import Recordings, Verdicts, backwards_of, rotated

from nsadiag.analysis import resolve
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.verdict import judge
from nsadiag.evidence.records import Verdict

# What no recording needs, and why it stays. This only shrinks: record its failure (CONTRIBUTING.md), or delete it.
UNRECORDED: dict[str, str] = {
    "lost_host": "takes two hosts: tests/hosts/test_two_hosts_run.py",
    "endless_loop": "takes a rehearsal: tests/commands/experiments/test_check.py",
    "walked_branches": "takes a rehearsal: tests/commands/experiments/test_check.py",
    "control_mismatch": "takes a matrix: tests/analysis/matrix/test_parity_words.py",
    # Names of their own since, each with a program in benchmarks/verdicts/silent.py that is to be recorded.
    **dict.fromkeys(
        (
            "batches_repeated",
            "idle_on_some_ranks",
            "kept_up_by_some",
            "same_inputs",
            "same_share",
            "schedule_begun_anew",
            "vanished_loss",
            "without_gradients",
        ),
        "a program of benchmarks/verdicts/silent.py has it",
    ),
    "other_epoch_resumed": "to be recorded: tests/analysis/rules/correctness/test_states.py, on rows as ranks write them",
    "short_window": "to be recorded: tests/analysis/rules/correctness/test_wiring.py, on rows as ranks write them",
}

Heard = dict[Path, list[Any]]  # by recording, what its verdict is


@pytest.fixture(scope="module")
def heard_in(verdicts: Verdicts, recordings: Recordings) -> dict[str, Heard]:
    """By part: the recordings in which it concludes. They are read backwards: so they are judged for another test, too."""
    found: dict[str, Heard] = {name: {} for name in parts()}
    for archive in rotated(sorted(GOLDEN.rglob("*.tar.xz"))):
        backwards = verdicts.backwards(archive)
        told = [backwards.verdict[key] for key in ("class", "outcome", "guilty_ranks", "signature")]
        for name in backwards.spoke:
            found[name][recordings.of(archive).path] = told
    return found


def essence(found: Verdict) -> list[Any]:
    """What a person acts upon."""
    return [found.cls, found.outcome, [*found.guilty_ranks], found.signature]


def is_needed(name: str, heard: Heard, patch: pytest.MonkeyPatch) -> bool:
    """Whether a recorded verdict is another one without it."""
    with_only(patch, lambda each, part: None if each == name else part)
    return any(
        essence(judge(backwards_of(load_cell(path)))) != heard[path] for path in likeliest_first(name, heard)
    )


def likeliest_first(name: str, heard: Heard) -> list[Path]:
    """Recordings whose verdict is one of the rule's own, before those in which another finding outranks it."""
    own = {cls for rule in resolve.RULES if rule.name == name for cls in rule.concludes}
    return sorted(heard, key=lambda path: heard[path][0] not in own)


@pytest.mark.parametrize("name", parts())
def test_a_recorded_verdict_changes_without_it(
    name: str, heard_in: dict[str, Heard], monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = is_needed(name, heard_in[name], monkeypatch)
    if name in UNRECORDED:
        assert not needed, f"a recording needs {name} now: take it out of UNRECORDED"
    else:
        assert needed, f"no recording needs {name}; it concludes in {len(heard_in[name])} of them"


def test_every_exception_is_a_part_that_exists() -> None:
    assert set(UNRECORDED) <= set(parts())
