"""A collective that every member issued with the same arguments and that never completes: data does not arrive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.groups import shown
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.call_mismatch import in_black_boxes, in_recorders
from nsadiag.analysis.relations.pending import Wait, is_still, waits
from nsadiag.analysis.relations.wait_graph import graph_of
from nsadiag.analysis.rules.blocked.connections import Link, stalled_links
from nsadiag.analysis.rules.drafts import last_look
from nsadiag.analysis.rules.reasons import not_still
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Strength, Where


def network_stall(case: Case) -> Iterator[Draft | Declined]:
    if not is_still(case.cell):
        yield from not_still(case.cell)
        return
    if edges := case.once(graph_of).edges:
        edge = edges[0]
        yield Declined(f"rank {edge.waiter} waits for rank {edge.waited_for} in {edge.what}", edge.source)
        return
    if one := next(iter([*in_recorders(case), *in_black_boxes(case)]), None):
        rank, asked = next(iter(one.asked.items()))
        yield Declined(
            f"the ranks disagree on the {one.kind} of call #{one.call} of {one.group}: rank {rank} asks for {asked.what}",
            asked.source,
        )
        return
    links = stalled_links(case.cell)
    for wait in waits(case):
        if _all_are_in(case, wait):
            yield _finding(case, wait, links)
        else:
            yield Declined(
                f"of the members of {wait.group} rank {shown(wait.waiting)} is the only one waiting in call #{wait.seq}",
                wait.source(case.cell, wait.waiting[0]) if wait.waiting else None,
            )


def _all_are_in(case: Case, wait: Wait) -> bool:
    """Whether all members issued it, none completed it, and all wait in it: no rank is missing."""
    members = case.groups.members(wait.group)
    stands = [case.thread_states.get(rank) for rank in members]
    return (
        not wait.missing
        and not wait.unseen
        and set(wait.waiting) == set(members)
        and len(members) > 1
        and all(at is not None and at.doing in ("collective", "backward") for at in stands)
    )


def _guilty(wait: Wait, links: list[Link]) -> tuple[int, ...]:
    """The rank at one end of all stalled connections; all members if there is none."""
    ends = [{link.rank, link.peer} for link in links if link.peer is not None]
    counts = Counter(rank for pair in ends for rank in pair if rank in wait.waiting)
    common = [rank for rank, n in counts.items() if n == len(ends)]
    several = len({tuple(sorted(pair, key=str)) for pair in ends}) > 1
    if several and len(common) == 1:
        return tuple(r for r in common if r is not None)
    return tuple(sorted(r for r in counts if r is not None)) or wait.waiting


def _finding(case: Case, wait: Wait, links: list[Link]) -> Draft:
    guilty = _guilty(wait, links)
    rank = guilty[0]
    collective = wait.collective(rank)
    here = case.thread_states[rank].place or locations.of_rank_now(case.cell.rank(rank))
    between = "; ".join(
        f"{link.bytes} bytes from rank {link.rank} to "
        f"{link.to if link.peer is None else f'rank {link.peer}'} are not acknowledged"
        for link in links[:4]
    )
    return Draft(
        strength=Strength.STRONG if links else Strength.WEAK,
        summary=f"All {len(case.cell.everyone(wait.waiting))} ranks of {wait.group} are in {collective.op} #{wait.seq} with the same arguments, and it does not complete"
        + (f": {between}." if between else "."),
        guilty_ranks=guilty,
        blocked_ranks=tuple(sorted(set(wait.waiting) - set(guilty))),
        where=Where(collective=collective, step=case.cell.rank(rank).end.steps).at(here),
        evidence={
            **{
                f"rank {r} issued {collective.op} #{wait.seq} of {wait.group} and is waiting in it": wait.source(
                    case.cell, r
                )
                for r in wait.waiting[:4]
            },
            **{
                f"rank {link.rank} has {link.bytes} bytes to {link.to} in flight, the same in both snapshots": link.source
                for link in links[:4]
            },
            **last_look(case.cell),
        },
        gaps=()
        if links
        else ("no stalled connection was seen: the transport may not be TCP, or may end on another machine",),
        fix="Check the network between these ranks: a firewall that drops idle connections, a flapping link, a wrong interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), MTU.",
        next="NCCL_DEBUG=INFO nsadiag run -- <the same command>",
    )


RULE = Rule(
    name="network_stall",
    means={"network_stall": "Every member issued the same collective, and it never completes."},
    family="waiting",
    detected="Every member issued the same collective and is waiting in it in both snapshots. If bytes on a TCP connection between two of them stay unacknowledged, its two ends are named. Across several hosts also: one stopped responding, and the remaining ranks wait for its ranks (at 75 %)",
    fix="Check the network between these ranks: firewall, flapping link, a wrong *_SOCKET_IFNAME, MTU.",
    actions=("exclude host", "retry"),
    check=network_stall,
    needs=("flight_recorders", "stacks"),
    explained_by=("missing_rank",),
    confused_with=("missing_rank", "collective_args_mismatch", "straggler_rank"),
)
