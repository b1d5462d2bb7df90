"""Each rule and each generator of candidates earns its place by a recording: switched off, it changes a recorded verdict."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.golden import GOLDEN
from support.verdicts import Answers, Recordings, rotated, shared_folder

from nsadiag.analysis import resolve, verdict
from nsadiag.analysis.explain import explanation
from nsadiag.analysis.explain.candidate import Rejection
from nsadiag.analysis.records import Declined
from nsadiag.analysis.scale.digests.cell import load_cell
from nsadiag.evidence.records import Verdict

# What no recording needs, and why it stays. This only shrinks: record its failure (CONTRIBUTING.md), or delete it.
UNRECORDED: dict[str, str] = {
    "lost_host": "takes two hosts: tests/cluster/test_two_hosts_run.py",
    "control_mismatch": "takes a matrix: tests/test_parity_compare.py",
}

Part = Callable[..., Any]


def parts() -> dict[str, Part]:
    """Everything that can be switched off, by name: the check of each rule, and each generator of candidates."""
    generators = {part.__name__: part for part in explanation.GENERATORS}
    return {**{rule.name: rule.check for rule in resolve.RULES}, **generators}


def with_only(patch: pytest.MonkeyPatch, changed: Callable[[str, Part], Part | None]) -> None:
    """Put another part, or none, in the place of each one."""
    rules = [(rule, changed(rule.name, rule.check)) for rule in resolve.RULES]
    patch.setattr(resolve, "RULES", tuple(dataclasses.replace(r, check=check) for r, check in rules if check))
    generators = [changed(part.__name__, part) for part in explanation.GENERATORS]
    patch.setattr(explanation, "GENERATORS", tuple(part for part in generators if part))


def essence(found: Verdict) -> list[Any]:
    """What a person acts upon."""
    return [found.cls, found.outcome, [*found.guilty_ranks], found.signature]


def listened_to(name: str, part: Part, spoke: set[str]) -> Part:
    """The part, whose name is noted when it concludes."""

    @functools.wraps(part)
    def note(*arguments: Any) -> Any:
        answer = part(*arguments)
        if isinstance(answer, Iterator):
            return map(heard, answer)
        return answer if answer is None else heard(answer)

    def heard(answer: Any) -> Any:
        if not isinstance(answer, Declined | Rejection):
            spoke.add(name)
        return answer

    return note


@pytest.fixture(scope="module")
def unpacked(recordings: Recordings) -> list[Path]:
    return [recordings.of(each).path for each in rotated(sorted(GOLDEN.rglob("*.tar.xz")))]


Heard = dict[Path, list[Any]]  # by recording, what its verdict is


@pytest.fixture(scope="module")
def heard_in(unpacked: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Heard]:
    """By part: the recordings in which it concludes."""
    found: dict[str, Heard] = {name: {} for name in parts()}
    answers = Answers(shared_folder(tmp_path_factory, "heard"))
    for path in unpacked:
        told, spoke = answers.of(path.name, functools.partial(told_by, path))
        for name in spoke:
            found[name][path] = told
    return found


def told_by(path: Path) -> tuple[list[Any], list[str]]:
    """The recorded verdict, and the parts that concluded something on the way to it."""
    spoke: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        with_only(patch, lambda name, part: listened_to(name, part, spoke))
        return essence(verdict.judge(load_cell(path))), sorted(spoke)


def is_needed(name: str, heard: Heard, patch: pytest.MonkeyPatch) -> bool:
    """Whether a recorded verdict is another one without it."""
    with_only(patch, lambda each, part: None if each == name else part)
    return any(
        essence(verdict.judge(load_cell(path))) != heard[path] for path in likeliest_first(name, heard)
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
