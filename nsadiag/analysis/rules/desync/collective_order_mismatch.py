"""The same group and number with different calls, or a cycle over several groups: ranks that disagree on the next collective."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exits import breaks, says_mismatch
from nsadiag.analysis.facts.groups import shown
from nsadiag.analysis.records import Declined, RankEvidence
from nsadiag.analysis.relations.call_mismatch import Disagreement, in_black_boxes, in_both
from nsadiag.analysis.relations.call_outliers import call_outliers, is_out_of_order
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.relations.suppressed_exceptions import gone_on, in_flight
from nsadiag.analysis.rules.desync.divergence import by_divergence
from nsadiag.analysis.rules.desync.issuing_threads import concurrent_call, starter_of, threads_in
from nsadiag.analysis.rules.desync.transport_rejections import rejection
from nsadiag.analysis.rules.desync.wait_cycles import cycle_finding
from nsadiag.analysis.rules.drafts import all_but, hung_or_crashed
from nsadiag.analysis.rules.reasons import not_still
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.records import Strength, Where

FIX = "Make all ranks issue the same collectives in the same order: iterate in an order that all ranks share (sorted keys), and let no collective depend on one rank's data."
FIX_THREADS = "Give the thread a process group of its own (dist.new_group on all ranks), or let one thread issue all collectives of a group."


def collective_order_mismatch(case: Case) -> Iterator[Draft | Declined]:
    if not is_still(case.cell):
        yield from not_still(case.cell)
        return
    yield from _in_a_loop(case)
    recorded = in_both(case)
    # The backend's records decide, where there are any: two names for one operation are no mismatch.
    for one in recorded or in_black_boxes(case):
        if is_out_of_order(case, one):
            yield _finding(case, one)
    yield from cycle_finding(case)
    yield Declined(
        f"none of {len(case.calls) or len(case.asked)} recorded calls differs between ranks out of order, and there is no cycle of waits"
    )


def collective_order_crash(case: Case) -> Iterator[Draft | Declined]:
    """The same in a crash: the transport rejected what did not fit, and its error is a consequence."""
    if is_still(case.cell) or not breaks(case.cell):
        yield Declined(
            "the ranks hang, and none ended early" if is_still(case.cell) else "no rank ended early",
            "ends.json",
        )
        return
    yield from _in_a_loop(case)
    found = [one for one in in_black_boxes(case) if is_out_of_order(case, one)]
    broke = [one for one in found if _broke_there(case, one)]
    for one in broke:
        yield _finding(case, one)
    if not broke and any(says_mismatch(b.rank) for b in breaks(case.cell)):
        yield from _of_threads(case)


def collective_order_refused(case: Case) -> Iterator[Draft | Declined]:
    """A call issued by a wrapper in C++ that met another one: it has no number in the recorder, and no error names the reason."""
    found = None if is_still(case.cell) else rejection(case.cell)
    if found is None:
        yield Declined(f"no transport on {len(case.cell.ranks)} ranks rejected a message for its size")
        return
    clear = len(found.guilty) < len(found.calls)
    blocked = tuple(r for r in sorted(found.calls) if r not in found.guilty)
    said = {
        r: f"{t.name or 'backward'} at {locations.short(t.place)}" if t.place else t.name or "backward"
        for r, t in sorted(found.calls.items())
    }
    who = f"rank{'s' if len(found.guilty) > 1 else ''} {shown(case.cell.everyone(found.guilty))} left the common path"
    words = "; ".join(f"rank {r}: {what}" for r, what in [*said.items()][:6])
    yield Draft(
        outcome="crashed",
        strength=Strength.LIKELY if clear else Strength.GUESS,
        summary=f"The ranks disagree on the next collective ({words}), and the transport rejected what rank {found.rank} received; {who if clear else 'it is unknown which is intended'}.",
        guilty_ranks=found.guilty,
        blocked_ranks=blocked,
        where=Where(step=case.cell.rank(found.guilty[0]).end.steps).at(found.calls[found.guilty[0]].place),
        peers_at=found.calls[blocked[0]].place if blocked else None,
        evidence={
            **{
                f"rank {r} reached {what}": f"{case.cell.rank(r).source}/blackbox.bin"
                for r, what in [*said.items()][:8]
            },
            **_other_size(case.cell.rank(found.rank)),
        },
        fix=FIX,
    )


def _other_size(rank: RankEvidence) -> Claims:
    return {
        f"rank {rank.rank} received a message of another size than it expected": f"{rank.source}/{'exception.json' if rank.exception else 'stderr.log'}"
    }


def _in_a_loop(case: Case) -> Iterator[Draft | Declined]:
    """A loop whose iteration order differs, by the source and by earlier steps."""
    return by_divergence(case, "collective_order_mismatch")


def _of_threads(case: Case) -> Iterator[Draft]:
    """Two threads that issue collectives of one group; what a wrapper issues from C++ is in no recorder."""
    for group in sorted(set(case.asked.group)):
        guilty = tuple(r for r, used in sorted(threads_in(case, group).items()) if len(used) > 1)
        calls = {r: call for r in guilty if (call := concurrent_call(case, group, r))}
        if not calls:
            continue
        said = next(b.rank for b in breaks(case.cell) if says_mismatch(b.rank))
        where = f"rank{'s' if len(guilty) > 1 else ''} {shown(case.cell.everyone(guilty))}"
        started = starter_of(case, group, guilty)
        blocked = all_but(case.cell, guilty)
        yield Draft(
            outcome="crashed",
            strength=Strength.STRONG,
            summary=f"Two threads issue collectives of {group} on {where}: their order differs from rank to rank, until two collectives meet that do not match.",
            guilty_ranks=guilty,
            blocked_ranks=blocked,
            where=Where(step=case.cell.rank(guilty[0]).end.steps).at(
                started.place if started else locations.of_text(str(next(iter(calls.values()))["place"]))
            ),
            evidence={
                **{
                    f"rank {r} was in {call['op']} {call['call']} of {group} in a second thread while the main thread was reducing in the same group": f"{case.cell.rank(r).source}/blackbox.bin"
                    for r, call in list(calls.items())[:4]
                },
                **({**started.evidence} if started else {}),
                **_other_size(said),
            },
            fix=FIX_THREADS,
        )


def _broke_there(case: Case, one: Disagreement) -> bool:
    """Whether no rank completed that call, and all exceptions were raised there.

    Or the rank that received what it did not expect was in it: a peer whose own message fits may be further on.
    """
    refused_there = any(
        _refused_in(case, b.rank.rank, one) for b in breaks(case.cell) if says_mismatch(b.rank)
    )
    # A rank that swallowed an exception diverged by that.
    if refused_there and not in_flight(case) and not gone_on(case):
        return True
    asked = case.asked[(case.asked.group == one.group) & case.asked["rank"].isin(one.asked)]
    # Each further thread may have had a call in progress.
    others = max((len(used) for used in threads_in(case, one.group).values()), default=1) - 1
    if int(asked.call.max()) > one.call + others:
        return False
    raised = {rank.rank: locations.of_exception(rank.exception) for rank in case.cell.ranks if rank.exception}
    at = {rank: a.place for rank, a in one.asked.items()}
    return all(
        rank not in at or (place is not None and at[rank] is not None and place.line == at[rank].line)  # type: ignore[union-attr]
        for rank, place in raised.items()
    )


def _refused_in(case: Case, rank: int, one: Disagreement) -> bool:
    asked = case.asked[(case.asked.group == one.group) & (case.asked["rank"] == rank)]
    return rank in one.asked and int(asked.call.max()) == one.call


def _finding(case: Case, one: Disagreement) -> Draft:
    used = threads_in(case, one.group)
    threads = {rank: len(own) for rank, own in used.items() if rank in one.asked}
    several = bool(threads) and min(threads.values()) > 1
    found = call_outliers(case, one)
    guilty, why = found.ranks, str(found.criterion)
    if several:
        guilty = tuple(sorted(one.asked))
    clear = len(guilty) < len(one.asked) or several
    who = f"rank{'s' if len(guilty) > 1 else ''} {shown(case.cell.everyone(guilty))}"
    started = starter_of(case, one.group, guilty) if several else None
    by = f", one of which was started at {locations.short(started.place)}" if started else ""
    why = f"two threads issue them on {who}{by}" if several else f"{who}: {why}"
    blocked = tuple(sorted(set(one.asked) - set(guilty)))
    first = one.asked[guilty[0]]
    here = started.place if started else first.place or locations.of_rank_now(case.cell.rank(guilty[0]))
    said = "; ".join(f"rank {r}: {a.what}" for r, a in sorted(one.asked.items())[:6])
    return Draft(
        outcome=hung_or_crashed(case.cell),
        strength=Strength.STRONG if clear else Strength.WEAK,
        summary=f"The ranks disagree on collective #{one.call} of {one.group} ({said}); {why}.",
        guilty_ranks=guilty,
        blocked_ranks=blocked,
        where=Where(collective=one.collective(guilty[0]), step=case.cell.rank(guilty[0]).end.steps).at(here),
        peers_at=one.asked[blocked[0]].place if blocked else None,
        evidence={
            **{
                f"rank {r} issued {a.what} as number {one.call}": a.source
                for r, a in sorted(one.asked.items())[:8]
            },
            **({**started.evidence} if started else {}),
        },
        fix=FIX_THREADS if several else FIX,
    )


NEIGHBOURS = (
    "collective_args_mismatch",
    "data_divergent_control_flow",
    "missing_rank",
    "rank_exception",
    "rank_killed",
)

OF_CRASH = Rule(
    name="collective_order_crash",
    concludes=("collective_order_mismatch",),
    family="divergence",
    detected="In a crash: the transport rejected a message that did not fit, and the ranks' calls at that point differ",
    fix="Make all ranks issue the same collectives in the same order.",
    check=collective_order_crash,
    needs=("black_boxes",),
    explained_by=("divergent_units",),
    confused_with=NEIGHBOURS,
)

RULE = Rule(
    name="collective_order_mismatch",
    means={
        "collective_order_mismatch": "Ranks issued different collectives at the same place in a group's order."
    },
    family="waiting",
    detected="The same group and number with different operations, or from unrelated lines; or a cycle of waits over several groups. The minority is guilty; without one, the ranks at a line that is new to them, that came to it on a new path or with new arguments, or that take part in a cycle in an order that none of its ranks ever used; all of them if each order had occurred before. If two threads issue collectives of one group, all are guilty, even if one of the threads is DDP's or FSDP's own. Also a loop or comprehension that led some ranks to one call and others to another, where all have made both before and no condition lies in between (all are guilty if they had done so in one iteration only): `where` is then the loop, since it iterates in another order, or the line above it that sorts or shuffles; the same where one line in a loop waits in different groups. In a crash also: the transport rejected what one rank received, and the others made another call at that point after a common history (at 50 to 70 %)",
    fix="Make all ranks issue the same collectives in the same order: iterate in an order that all ranks share.",
    check=collective_order_mismatch,
    needs=("black_boxes",),
    explained_by=("p2p_mismatch",),
    confused_with=NEIGHBOURS,
)

OF_REFUSAL = Rule(
    name="collective_order_refused",
    concludes=("collective_order_mismatch",),
    family="waiting",
    detected="In a crash: a call issued by a wrapper, which has no number, met a different one, and no error names the reason",
    fix="Make all ranks issue the same collectives in the same order.",
    check=collective_order_refused,
    needs=("black_boxes",),
    explained_by=("collective_order_mismatch",),
    confused_with=NEIGHBOURS,
)
