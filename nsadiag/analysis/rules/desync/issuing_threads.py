"""Threads of a rank that issue collectives of one group: two threads race, and their order differs between ranks."""

from __future__ import annotations

import math
from typing import Any

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.groups import raw_name
from nsadiag.analysis.records import RankEvidence
from nsadiag.evidence.ring.blackbox import Kind, Phase


def threads_in(case: Case, group: str) -> dict[int, set[int]]:
    """By rank, the threads that called collectives of the group, and the main one if a wrapper reduces in it.

    If one rank has been in backward, a rank that wrapped its model in the same way counts too: which ranks get there
    before the job ends is chance.
    """
    rows = case.asked[case.asked.group == group]
    found = {int(str(rank)): {int(t) for t in frame.thread} for rank, frame in rows.groupby("rank")}
    reducing = [r for r in map(case.cell.rank, found) if _reduces_in(r, case, group)]
    if any(_backwards(case, r) for r in reducing):
        for rank in reducing:
            found[rank.rank].add(_main(rank))
    return found


def concurrent_call(case: Case, group: str, rank: int) -> dict[Any, Any] | None:
    """The rank's last call in the group from another thread, if the main thread used the group at the same time."""
    evidence = case.cell.rank(rank)
    rows = case.asked[(case.asked.group == group) & (case.asked["rank"] == rank)]
    main = rows.thread == _main(evidence)
    others = rows[~main]
    if others.empty:
        return None
    last: dict[Any, Any] = others.iloc[-1].to_dict()
    spans = [(b, e) for b, e in rows.loc[main, ["begin_s", "end_s"]].itertuples()]
    spans += _backwards(case, evidence) if _reduces_in(evidence, case, group) else []
    begin, end = last["begin_s"], _or_never(last["end_s"])
    return last if any(b <= end and begin <= _or_never(e) for b, e in spans) else None


def _main(rank: RankEvidence) -> int:
    header = rank.recording.header
    return header.pid if header else 0


def _reduces_in(rank: RankEvidence, case: Case, group: str) -> bool:
    """Whether DDP or FSDP issues collectives of the group, from C++, in backward."""
    named = [*(model.group for model in rank.ddp), *(unit.group for unit in rank.units)]
    return any(case.groups.label(rank.rank, raw_name(name, "")) == group for name in named if name)


def _backwards(case: Case, rank: RankEvidence) -> list[tuple[float, float | None]]:
    found: list[tuple[float, float | None]] = []
    for phase, t_s in case.events_of(rank.rank, Kind.BACKWARD)[["phase", "t_s"]].itertuples():
        if phase == Phase.BEGIN:
            found.append((t_s, None))
        elif found:
            found[-1] = found[-1][0], t_s
    return found


def _or_never(t_s: Any) -> float:
    """A missing end lies in the future."""
    return float(t_s) if t_s is not None and not math.isnan(t_s) else float("inf")
