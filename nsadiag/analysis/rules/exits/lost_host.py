"""A host that was lost while the job ran: its ranks left no evidence, and the others wait for them or failed without them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exits import breaks
from nsadiag.analysis.records import CellEvidence, Declined
from nsadiag.analysis.relations.pending import is_still, waits
from nsadiag.analysis.rules.drafts import last_look
from nsadiag.analysis.rules.exits.rank_exited_early import NEEDS_PEERS
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.records import Strength, Where
from nsadiag.evidence.spans import spans

# Agents send a heartbeat every second.
ABOUT_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A node that stopped responding."""

    name: str
    lost_s: float
    ranks: tuple[int, ...]


def lost_nodes(cell: CellEvidence) -> list[Lost]:
    """Nodes that watch.json lists as lost, in the order of their loss."""
    nodes = cell.watch.nodes
    found = [
        Lost(name=node.name, lost_s=node.lost_s, ranks=node.ranks)
        for node in nodes
        if node.lost_s is not None
    ]
    return sorted(found, key=lambda node: node.lost_s)


def lost_host(case: Case) -> Iterator[Draft | Declined]:
    lost = next((node for node in lost_nodes(case.cell) if node.ranks), None)
    if lost is None:
        count = len(case.cell.watch.nodes) or 1
        yield Declined(f"{count} of {count} hosts reported to the end", "watch.json#nodes")
        return
    left = {n: s for n, s in case.thread_states.items() if n not in lost.ranks}
    first = next(iter(breaks(case.cell)), None)
    if is_still(case.cell) and left and all(s.doing in NEEDS_PEERS for s in left.values()):
        yield _stalled(case, lost, sorted(left))
    elif first is not None and first.follows_a_peer and first.t_s > lost.lost_s - ABOUT_S:
        yield _gone(case.cell, lost, first.rank.rank, first.t_s)


def _stalled(case: Case, lost: Lost, left: list[int]) -> Draft:
    wait = next((w for w in waits(case) if set(lost.ranks) & {*w.unseen, *w.missing}), None)
    waiter = wait.waiting[0] if wait else left[0]
    collective = wait.collective(waiter) if wait else None
    called = f" in {collective.op} #{wait.seq} of {wait.group}" if wait and collective else ""
    state = case.thread_states.get(waiter)
    return Draft(
        outcome="hung",
        strength=Strength.LIKELY,
        summary=f"Host {lost.name} stopped responding {lost.lost_s:.0f} s into the job, and ranks {spans(left)} wait{called} for its ranks {spans(lost.ranks)}.",
        guilty_ranks=lost.ranks,
        blocked_ranks=tuple(left),
        where=Where(host=lost.name, collective=collective),
        peers_at=state.place if state else None,
        evidence={
            f"no heartbeat of {lost.name} arrived after {lost.lost_s:.1f} s": "watch.json#nodes",
            **(
                {
                    f"rank {waiter} issued{called.replace(' in', '', 1)} and is waiting in it": wait.source(
                        case.cell, waiter
                    )
                }
                if wait
                else {}
            ),
            **last_look(case.cell),
        },
        fix=f"Check {lost.name} and the network to it: whether it is up and answers a ping, its kernel log, the switch.",
        next=f"what ranks {spans(lost.ranks)} did is in the run directory on {lost.name}: nsadiag analyze it there",
    )


def _gone(cell: CellEvidence, lost: Lost, victim: int, t_s: float) -> Draft:
    exception = cell.rank(victim).exception
    left = tuple(rank.rank for rank in cell.ranks if rank.rank not in lost.ranks)
    return Draft(
        cls="rank_killed",
        strength=Strength.WEAK,
        summary=f"Host {lost.name} stopped responding {lost.lost_s:.0f} s into the job, and ranks {spans(lost.ranks)} ended with it; the others failed because it was gone.",
        guilty_ranks=lost.ranks,
        blocked_ranks=left,
        where=Where(host=lost.name),
        peers_at=locations.of_exception(exception) if exception else None,
        evidence={
            f"no heartbeat of {lost.name} arrived after {lost.lost_s:.1f} s": "watch.json#nodes",
            f"rank {victim} was the first on another host to fail, at {t_s:.1f} s, because a peer was gone": f"{cell.rank(victim).source}/exception.json",
        },
        gaps=(f"what ended the ranks on {lost.name} is unknown: no evidence of that host is left",),
        fix=f"Find what became of {lost.name}: a reboot, the OOM killer, a scheduler that took it back, or someone who stopped nsadiag there.",
        next=f"the run directory on {lost.name}, if it still has one: nsadiag analyze it there",
    )


RULE = Rule(
    name="lost_host",
    concludes=("network_stall", "rank_killed"),
    family="exit",
    outcome="crashed",
    detected="Across several hosts: one stopped responding, and the remaining ranks wait for its ranks or lost them",
    fix="Check the lost host and the network to it.",
    actions=("exclude host", "retry"),
    check=lost_host,
    needs=("looks",),
    explained_by=("rank_exception",),
    confused_with=("missing_rank", "rank_exception"),
)
