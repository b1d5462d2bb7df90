"""The same group and number with different calls, or a cycle over several groups: ranks that disagree on the next collective."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exits import breaks, says_mismatch
from nsadiag.analysis.facts.groups import raw_name
from nsadiag.analysis.outliers import Criterion
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.relations.call_mismatch import Disagreement, in_black_boxes, in_both, in_messages
from nsadiag.analysis.relations.call_outliers import call_outliers, is_out_of_order
from nsadiag.analysis.relations.messages.received import misled
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.relations.suppressed_exceptions import gone_on, in_flight
from nsadiag.analysis.rules.desync.divergence import order_in_a_loop
from nsadiag.analysis.rules.desync.wait_cycles import cycle_finding
from nsadiag.analysis.rules.drafts import named, recorded, sides
from nsadiag.analysis.rules.reasons import everyone, not_still
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.phrases import call_name, count
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.ring.blackbox import Kind

FIX = "Make all ranks issue the same collectives in the same order: iterate in an order that all ranks share (sorted keys), and let no collective depend on one rank's data."
FIX_THREADS = "Give the thread a process group of its own (dist.new_group on all ranks), or let one thread issue all collectives of a group."


def collective_order_mismatch(case: Case) -> Iterator[Draft | Declined]:
    if not is_still(case.cell):
        yield from not_still(case.cell)
        return
    yield from order_in_a_loop(case)
    # The backend's records decide, where there are any: two names for one operation are no mismatch.
    for one in in_both(case) or in_black_boxes(case):
        if is_out_of_order(case, one):
            yield _draft(case, one)
    yield from cycle_finding(case)
    if calls := len(case.asked) + len(case.calls):
        yield Declined(
            f"{everyone(case.cell)} issued the {count(calls, 'recorded call')} in the same order, and no cycle of ranks waits in them"
        )


def collective_order_crash(case: Case) -> Iterator[Draft | Declined]:
    """The same in a crash: the transport rejected what did not fit, and its error is a consequence."""
    if is_still(case.cell) or not breaks(case.cell):
        yield Declined(
            "the ranks hang, and none ended early" if is_still(case.cell) else "no rank ended early",
            "ends.json",
        )
        return
    yield from order_in_a_loop(case)
    broke = [one for one in in_black_boxes(case) if is_out_of_order(case, one) and _rejected_in(case, one)]
    said = [one for one in in_messages(case) if is_out_of_order(case, one)]
    for one in broke or said:
        yield _draft(case, one)
    if not (broke or said) and any(says_mismatch(b.rank) for b in breaks(case.cell)):
        yield from _of_threads(case)


def _rejected_in(case: Case, one: Disagreement) -> bool:
    """Whether a rank received what it did not expect in that call, its last one, and none diverged by an exception."""
    asked = case.asked[case.asked.group == one.group]
    last = asked.groupby("rank").call.max()
    unfit = misled(case)
    rejecting = {b.rank.rank for b in breaks(case.cell) if b.rank is unfit or says_mismatch(b.rank)} & set(
        one.asked
    )
    return any(last[rank] == one.call for rank in rejecting) and not (in_flight(case) or gone_on(case))


def _draft(case: Case, one: Disagreement) -> Draft:
    threads = [len(used) for rank, used in _threads_in(case, one.group).items() if rank in one.asked]
    if threads and min(threads) > 1:
        return _of_two_threads(case, one)
    found = call_outliers(case, one)
    guilty = found.ranks
    peers = tuple(sorted(set(one.asked) - set(guilty)))
    blamed, blocked = sides(case, guilty, peers)
    return Draft(
        strength=Strength.STRONG if peers and found.criterion != Criterion.NOVEL else Strength.WEAK,
        summary=f"The ranks disagree on {_calls(one)}; {found.said_of(named(case.cell, guilty))}.",
        guilty_ranks=blamed,
        blocked_ranks=blocked,
        at=next((one.asked[rank].place for rank in guilty if one.asked[rank].place), None)
        or locations.of_rank_now(case.cell.rank(guilty[0])),
        where=Where(collective=one.collective(guilty[0])),
        peers_at=one.asked[peers[0]].place if peers else None,
        evidence=_issued(one),
    )


def _of_two_threads(case: Case, one: Disagreement) -> Draft:
    guilty = tuple(sorted(one.asked))
    return Draft(
        strength=Strength.STRONG,
        summary=f"The ranks disagree on {_calls(one)}; two threads issue them on {named(case.cell, guilty)}.",
        guilty_ranks=guilty,
        blocked_ranks=(),
        at=one.asked[guilty[0]].place,
        where=Where(collective=one.collective(guilty[0])),
        evidence=_issued(one),
        fix=FIX_THREADS,
    )


def _calls(one: Disagreement) -> str:
    """The calls of the ranks, for a sentence."""
    said = "; ".join(f"rank {r}: {a.what}" for r, a in sorted(one.asked.items())[:6])
    return f"{call_name('collective', one.call, one.group)} ({said})"


def _issued(one: Disagreement) -> Claims:
    asked = sorted(one.asked.items())[:8]
    return {f"rank {r} issued {a.what} as collective #{one.call}": a.source for r, a in asked}


def _of_threads(case: Case) -> Iterator[Draft]:
    """Two threads that issue collectives of one group; what a wrapper issues from C++ is in no recorder."""
    for group in sorted(set(case.asked.group)):
        used = _threads_in(case, group)
        guilty = tuple(r for r in sorted(used) if len(used[r]) > 1)
        calls = {r: call for r in guilty if (call := _concurrent_call(case, group, r))}
        if not calls:
            continue
        shown = [(r, call_name(call["op"], call["call"], group)) for r, call in calls.items()]
        where = "in a second thread while the main thread was reducing in the same group"
        yield Draft(
            outcome="crashed",
            strength=Strength.STRONG,
            summary=f"Two threads issue collectives of {group} on {named(case.cell, guilty)}: their order differs from rank to rank, until two collectives meet that do not match.",
            guilty_ranks=guilty,
            at=locations.of_text(str(next(iter(calls.values()))["place"])),
            evidence=recorded(case.cell, {r: f"was in {called} {where}" for r, called in shown[:4]}),
            fix=FIX_THREADS,
        )


NEIGHBOURS = (
    "collective_args_mismatch",
    "data_divergent_control_flow",
    "missing_rank",
    "rank_exception",
    "rank_killed",
)

OF_CRASH = Rule(
    concludes=("collective_order_mismatch",),
    family="divergence",
    detected="In a crash: the transport rejected a message that did not fit, or a rank failed on what it read there (an absurd size, no pickle, no shapes of parameters), and the ranks' calls at that point differ.",
    fix=FIX,
    check=collective_order_crash,
    cause_in_source=True,
    needs=("black_boxes",),
    explained_by=("divergent_units",),
    confused_with=NEIGHBOURS,
)


def _threads_in(case: Case, group: str) -> dict[int, set[int]]:
    """By rank, the threads that called collectives of the group, and the main one if a wrapper reduces in it.

    If one rank has been in backward, a rank that wrapped its model in the same way counts too: which ranks get there
    before the job ends is chance.
    """
    rows = case.asked[case.asked.group == group]
    found = {int(str(rank)): {int(t) for t in frame.thread} for rank, frame in rows.groupby("rank")}
    reducing = [r for r in map(case.cell.rank, found) if _reduces_in(r, case, group)]
    if any(_backwards(case, r) for r in reducing):
        for rank in reducing:
            found[rank.rank].add(_main_thread(rank))
    return found


def _concurrent_call(case: Case, group: str, rank: int) -> dict[Any, Any] | None:
    """The rank's last call in the group from another thread, if the main thread used the group at the same time."""
    evidence = case.cell.rank(rank)
    rows = case.asked[(case.asked.group == group) & (case.asked["rank"] == rank)]
    main = rows.thread == _main_thread(evidence)
    others = rows[~main]
    if others.empty:
        return None
    last: dict[Any, Any] = others.iloc[-1].to_dict()
    spans = [(b, e) for b, e in rows.loc[main, ["begin_s", "end_s"]].itertuples()]
    spans += _backwards(case, evidence) if _reduces_in(evidence, case, group) else []
    begin, end = last["begin_s"], _or_never(last["end_s"])
    return last if any(b <= end and begin <= _or_never(e) for b, e in spans) else None


def _main_thread(rank: RankEvidence) -> int:
    header = rank.recording.header
    return header.pid if header else 0


def _reduces_in(rank: RankEvidence, case: Case, group: str) -> bool:
    """Whether DDP or FSDP issues collectives of the group, from C++, in backward."""
    named = [*(model.group for model in rank.ddp), *(unit.group for unit in rank.units)]
    return any(case.groups.label(rank.rank, raw_name(name, "")) == group for name in named if name)


def _backwards(case: Case, rank: RankEvidence) -> list[tuple[float, float | None]]:
    return [(span.begin_s, span.end_s) for span in case.spans(rank, Kind.BACKWARD)]


def _or_never(t_s: Any) -> float:
    """A missing end lies in the future."""
    return float(t_s) if t_s is not None and not math.isnan(t_s) else float("inf")


RULE = Rule(
    means={
        "collective_order_mismatch": "Ranks issued different collectives at the same place in a group's order."
    },
    family="waiting",
    detected="Ranks issued different operations under one number of a group, or the same one from unrelated lines; or ranks wait for each other in a cycle over several groups. The minority is guilty; without one, the ranks that are at a line, on a path, or in an order that is new to them; otherwise all, and in evidence of other tools nobody. If two threads issue collectives of one group, even DDP's or FSDP's own, all ranks are guilty. If a loop leads some ranks to one call and others to another, it iterates in another order: `where` is the loop, or the line above it that sorts or shuffles.",
    fix=FIX,
    check=collective_order_mismatch,
    cause_in_source=True,
    needs=("black_boxes",),
    explained_by=("p2p_mismatch",),
    confused_with=NEIGHBOURS,
)
