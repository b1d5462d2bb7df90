"""A rank ended of its own accord while its peers still needed it."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis import places
from nsadiag.analysis.breaks import first_break
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.records import Evidence, Finding, Rejected, Where


def rank_exited_early(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    first = first_break(cell)
    if first is None or first.kind != "exited":
        return
    rank = first.rank
    code = rank.end.get("exit_code")
    left = [r for r in cell.ranks if r.rank != rank.rank]
    left_at = rank.leaving and places.of_text(rank.leaving["place"])
    blocked = next(
        (places.of_exception(r.exception) if r.exception else places.of_rank_now(r) for r in left), None
    )
    yield Finding(
        detector="rank_exited_early",
        cls="rank_exited_early",
        outcome="hung" if cell.stopped == "hang" else "crashed",
        confidence=0.93,
        summary=f"Rank {rank.rank} ended by itself (exit code {'unknown' if code is None else code}) after {rank.end.get('steps', 0)} steps, while its peers still trained.",
        guilty_ranks=(rank.rank,),
        blocked_ranks=tuple(r.rank for r in left),
        where=Where(step=rank.end.get("steps")).at(left_at or places.of_black_box(rank)),
        peers_at=blocked,
        evidence=(
            Evidence(
                claim=f"rank {rank.rank} ran its exit handlers and ended at {first.t_s:.1f} s, without an exception",
                source="ends.json",
            ),
        ),
        rejected=(
            Rejected(cls="rank_killed", because="its exit handlers ran, and no signal ended it"),
            Rejected(
                cls="rank_exception",
                because="it raised no exception; its peers' errors say only that it was gone",
            ),
        ),
        fix="Let all ranks agree to stop (all_reduce a flag) before any of them leaves the loop.",
    )
