"""Nothing above explains it: says what is known, what is missing, and what to try."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis import places
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.tables import Tables
from nsadiag.analysis.waiting import is_still
from nsadiag.evidence.records import Evidence, Finding, Outcome, Where


def _what_is_known(cell: CellEvidence) -> tuple[Outcome, str]:
    if is_still(cell) and cell.ranks:
        return "hung", "Nothing moves on any rank, and no collective shows who is waited for"
    if cell.attached:
        looks = cell.watch.get("looks", [])
        reason = looks[-1]["reason"] if looks else "no rank could be looked at"
        return (
            "unknown",
            f"Not stuck, and no sign that it gets anywhere, at the same lines in both looks: {reason}",
        )
    if cell.stopped == "interrupt":
        return "unknown", "The run was interrupted before it came to an end"
    if cell.stopped == "timeout":
        return (
            "unknown",
            "--timeout was reached, and nothing that could be observed tells progress from waiting",
        )
    if cell.launcher_exit_code:
        return "crashed", f"The command ended with exit code {cell.launcher_exit_code} and no rank says why"
    if not cell.ranks:
        return "unknown", "The command ended well, but no process of it trained anything with torch"
    return "unknown", "The ranks' ends do not add up to success, and none of them shows a failure"


def unknown(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    outcome, summary = _what_is_known(cell)
    looked_at = [r for r in cell.ranks if r.captures]
    here = places.of_rank_now(looked_at[0]) if looked_at else None
    process = next((c for c in reversed(cell.processes) if places.of_stack(c.stacks)), None)
    evidence = (
        [
            Evidence(
                claim=f"{cell.launcher_stderr.strip().splitlines()[-1][:200]}",
                source="nodes/*/launcher.stderr.log",
            )
        ]
        if cell.launcher_stderr.strip()
        else []
    )
    if process:
        here = places.of_stack(process.stacks)
        evidence.append(
            Evidence(
                claim="where the process stood when it was looked at", source=f"{process.source}/py_spy.json"
            )
        )
    yield Finding(
        detector="unknown",
        cls="unknown",
        outcome=outcome,
        confidence=0.3,
        summary=summary + ".",
        where=Where().at(here) if here else None,
        evidence=tuple(evidence),
        gaps=()
        if cell.ranks
        else (
            "no process of the job opened a black box: none of them trained with torch, or Python ran with -S or -I",
        ),
        next="look again later with nsadiag attach, or start it with nsadiag run --probes full -- <the same command>"
        if cell.attached
        else "nsadiag run --probes full --timeout 120 -- <the same command>",
    )
