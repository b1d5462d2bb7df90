"""`nsadiag run --restart-on retry=N`: another attempt where the verdict's action is `retry`, and only there."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from nsadiag.agent import interrupts
from nsadiag.commands.run import Root, RunRequest, RunResult, run_once
from nsadiag.errors import UsageError
from nsadiag.evidence.records import Verdict
from nsadiag.printing import note

MOST_NAMED = 64  # guilty ranks


def restarts_of(text: str) -> int:
    """The number of further attempts in `retry=N`."""
    found = re.fullmatch(r"retry=(\d{1,4})", text)
    if not found:
        raise UsageError(
            f"--restart-on is {text!r}",
            "retry=3: at most three further attempts, each after a verdict whose action is retry",
        )
    return int(found[1])


def run_again(request: RunRequest, restarts: int) -> RunResult:
    """Attempts until one needs no retry, or there have been so many; the result is that of the last one.

    Raises NsadiagError before anything was started, never after.
    """
    outs = [out_of(request.out, attempt) for attempt in range(1, restarts + 2)]
    if not request.force:
        _check_free(outs[1:])
    earlier: list[Root] = []
    for attempt, out in enumerate(outs, start=1):
        result = run_once(dataclasses.replace(request, out=out, attempt=attempt, earlier=tuple(earlier)))
        why = why_again(result)
        if result.verdict:
            earlier.append(root_of(result.directory, result.verdict))
        if why is None or attempt == len(outs):
            return result
        note(
            f"nsadiag: attempt {attempt} of at most {len(outs)}, in {result.directory}: {why} Starting the job again."
        )
    raise AssertionError("there is a first attempt")


def root_of(directory: Path, verdict: Verdict) -> Root:
    """This attempt as a further one knows it: by the action of its verdict the same root twice is no chance."""
    return Root(
        directory=str(directory), signature=verdict.signature, guilty_ranks=verdict.guilty_ranks[:MOST_NAMED]
    )


def out_of(out: Path | None, attempt: int) -> Path | None:
    """Each attempt has a directory of its own: DIR, DIR.attempt2, DIR.attempt3."""
    return out if out is None or attempt == 1 else out.with_name(f"{out.name}.attempt{attempt}")


def why_again(result: RunResult) -> str | None:
    """The reason for another attempt; None where a person has stopped it, it still runs, or a retry would fail again."""
    verdict = result.verdict
    if verdict is None or verdict.action is None or verdict.action.do != "retry":
        return None
    if interrupts.asked() or result.left_running:
        return None
    return f"{verdict.summary} Action retry: {verdict.action.because}."


def _check_free(outs: list[Path | None]) -> None:
    taken = next((out for out in outs if out and out.exists()), None)
    if taken:
        raise UsageError(
            f"{taken} exists, and a further attempt would be written there",
            "choose another --out, or replace it with --force",
        )
