"""Facts by which rules decline, as far as several rules share them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsadiag.analysis.case import Tables
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import first_of, headline
from nsadiag.analysis.facts.exits import breaks, first_break
from nsadiag.analysis.facts.groups import newest_dump
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.blocked import inside
from nsadiag.analysis.relations.pending import is_still
from nsadiag.evidence.spans import spans


def not_still(cell: CellEvidence) -> Iterator[Declined]:
    """What the last look found, if that was not silence."""
    looks = cell.watch.get("looks") or []
    if not looks:
        yield Declined("the job was never found still: it was not looked at in a silence", "watch.json")
    elif not is_still(cell):
        yield Declined(
            f"the job was not still at the last look: {looks[-1].get('reason') or looks[-1]['judgement']}",
            "watch.json#looks",
        )


def other_break(cell: CellEvidence) -> Iterator[Declined]:
    """How the first rank broke."""
    first = first_break(cell)
    if first is None:
        followed = sorted({b.rank.rank for b in breaks(cell)})
        words = f"; rank {spans(followed)} only lost a peer" if followed else ""
        yield Declined(f"no rank broke of its own accord{words}", "ends.json")
    elif first.kind == "exception" and first.rank.exception:
        yield Declined(
            f"the first to break was rank {first.rank.rank}, which raised {headline(first_of(first.rank.exception))}",
            f"{first.rank.source}/exception.json",
        )
    else:
        how = "was killed" if first.kind == "killed" else "exited by itself"
        yield Declined(f"the first to break was rank {first.rank.rank}, which {how}", "ends.json")


def blocked_elsewhere(cell: CellEvidence, tables: Tables) -> Iterator[Declined]:
    """In what the ranks are blocked that wait for no peer."""
    found = inside(cell, tables)
    for stuck in found[:4]:
        at = f" at {locations.short(stuck.standing.place)}" if stuck.standing.place else ""
        moves = "" if stuck.standing.same else ", and its lines changed between the looks"
        yield Declined(f"rank {stuck.number} is in state {stuck.standing.doing}{at}{moves}", stuck.source)
    if not found:
        yield Declined("no rank that was looked at is blocked inside itself")


def _lacks(cell: CellEvidence, need: str) -> list[int]:
    if need == "black_boxes":
        return [r.rank for r in cell.ranks if r.recording.header is None]
    if need == "stacks":
        return [r.rank for r in cell.ranks if not any(c.stacks for c in r.captures)]
    if need == "flight_recorders":
        return [r.rank for r in cell.ranks if not newest_dump(r)]
    if need == "ends":
        return [r.rank for r in cell.ranks if not r.end]
    return []


WORDS = {"black_boxes": "black box", "stacks": "stack", "flight_recorders": "flight recorder", "ends": "end"}


def lacking(cell: CellEvidence, needs: Sequence[str]) -> Iterator[Declined]:
    """Evidence that a rule needs and that is not there."""
    for need in needs:
        if without := _lacks(cell, need):
            yield Declined(f"no {WORDS[need]} of rank {spans(without)}")
    if "sources" in needs and not cell.sources:
        yield Declined("no source of the user's is at hand")
    if "looks" in needs and not cell.watch.get("looks"):
        yield Declined("the job was not looked at in a silence", "watch.json")
