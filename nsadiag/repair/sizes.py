"""Jobs for exactly so many ranks: a rehearsal on one rank more shows nothing of a repair, and that is said."""

from __future__ import annotations

from nsadiag.evidence.rehearsal.calls import CREATION, RECEIVE, SEND
from nsadiag.evidence.rehearsal.witnessed import Seen
from nsadiag.repair.change import Change
from nsadiag.repair.record import RankRecord, Record, site_of

TRANSFERS = (SEND, RECEIVE)


def cannot_grow(
    failed: Record, repaired: Record, larger_failed: Record, larger_repaired: Record, change: Change
) -> str:
    """The reason for which a job has no more ranks, with a patch or without; empty where the patch could be at fault.

    `failed` and `repaired` are of its own number of ranks, the larger ones of one rank more.
    """
    why = larger_repaired.why
    if larger_failed.answer == larger_repaired.answer == "raised" and larger_failed.why == why:
        return "" if failed.answer == "raised" and failed.why == why else why
    added = len(failed.ranks)
    before, after = (record.ranks.get(added, RankRecord()) for record in (larger_failed, larger_repaired))
    calls = [seen for seen in after.seen if seen.what == "call" and seen.op != CREATION]
    alone = len(calls) == 1 and after.seen[-1] == calls[0] and calls[0].op in TRANSFERS
    alike = [_key(s, change) for s in before.seen] == [_key(s, None) for s in after.seen]
    if not (alone and alike):
        return ""
    if not (
        _is_passed_over(added, failed, larger_failed) and _is_passed_over(added, repaired, larger_repaired)
    ):
        return ""
    file, line = site_of(calls[0].place)
    return f"rank {added} stands at its first call, the {calls[0].op} at {file}:{line}, and no rank takes notice of it"


def _is_passed_over(added: int, smaller: Record, larger: Record) -> bool:
    """Whether the others do as they did without that rank, to their end or to the first meeting of a group that it is in."""
    for rank, own in smaller.ranks.items():
        seen = larger.ranks.get(rank, RankRecord()).seen
        until = next((n for n, s in enumerate(seen) if _is_with(added, s)), len(seen))
        if until < len(seen) - 1 or [_key(s, None) for s in seen[:until]] != [
            _key(s, None) for s in own.seen[: until if until < len(seen) else None]
        ]:
            return False
    return True


def _is_with(rank: int, seen: Seen) -> bool:
    return seen.what == "call" and seen.op not in (*TRANSFERS, CREATION) and rank in seen.members


def _key(seen: Seen, change: Change | None) -> tuple[object, ...]:
    """The parts that are compared; with a change, a line before it has the number that it has after it."""
    file, line = site_of(seen.place)
    kept = change.kept_line(file, line) if change else line
    return seen.what, seen.op, seen.value, seen.path, file, kept
