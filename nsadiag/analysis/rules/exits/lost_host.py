"""A host that was lost while the job ran: its ranks left no evidence, and the others wait for them or failed without them."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exits import Break, breaks
from nsadiag.analysis.records import Declined
from nsadiag.analysis.relations.pending import is_still, waits
from nsadiag.analysis.rules.drafts import last_look, line_of
from nsadiag.analysis.rules.exits.rank_exited_early import NEEDS_PEERS
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.watch import Node
from nsadiag.evidence.phrases import all_of, call_name, these
from nsadiag.evidence.records import Strength, Where

# Agents send a heartbeat every second.
ABOUT_S = 3.0


def lost_host(case: Case) -> Iterator[Draft | Declined]:
    nodes = case.cell.watch.nodes
    gone = [(node.lost_s, node) for node in nodes if node.lost_s is not None and node.ranks]
    if not gone and case.cell.collected is None:
        yield Declined(f"{all_of(len(nodes) or 1, 'host')} reported to the end", "watch.json#nodes")
    if not gone:
        return
    lost_s, node = min(gone, key=lambda each: each[0])
    left = {rank: state for rank, state in case.thread_states.items() if rank not in node.ranks}
    first = next(iter(breaks(case.cell)), None)
    if is_still(case.cell) and left and all(s.doing in NEEDS_PEERS for s in left.values()):
        yield _stalled(case, node, lost_s, sorted(left))
    elif first is not None and first.follows_a_peer and first.t_s > lost_s - ABOUT_S:
        yield _crashed(node, lost_s, first)


def _stalled(case: Case, node: Node, lost_s: float, left: list[int]) -> Draft:
    wait = next((w for w in waits(case) if set(node.ranks) & {*w.unseen, *w.missing}), None)
    evidence = {f"no heartbeat of {node.name} arrived after {lost_s:.1f} s": "watch.json#nodes"}
    collective, waits_in = None, "wait"
    if wait:
        collective = wait.collective(wait.waiting[0])
        call = call_name(collective.op, wait.seq, wait.group)
        waits_in = f"wait in {call}"
        claim = f"rank {wait.waiting[0]} issued {call} and is waiting in it"
        evidence[claim] = wait.source(case.cell, wait.waiting[0])
    return Draft(
        outcome="hung",
        strength=Strength.LIKELY,
        summary=f"Host {node.name} stopped responding {lost_s:.0f} s into the job, and {these(left)} {waits_in} for its {these(node.ranks)}.",
        guilty_ranks=node.ranks,
        blocked_ranks=tuple(left),
        where=Where(host=node.name, collective=collective),
        peers_at=line_of(case, wait.waiting[:1] if wait else left),
        evidence={**evidence, **last_look(case.cell)},
        fix=f"Check {node.name} and the network to it: whether it is up and answers a ping, its kernel log, the switch.",
        next=f"what {these(node.ranks)} did is in the run directory on {node.name}: nsadiag analyze it there",
    )


def _crashed(node: Node, lost_s: float, first: Break) -> Draft:
    victim = first.rank
    return Draft(
        cls="rank_killed",
        outcome="crashed",
        strength=Strength.WEAK,
        summary=f"Host {node.name} stopped responding {lost_s:.0f} s into the job, and {these(node.ranks)} ended with it; the others failed because it was gone.",
        guilty_ranks=node.ranks,
        where=Where(host=node.name),
        peers_at=locations.of_exception(victim.exception) if victim.exception else None,
        evidence={
            f"no heartbeat of {node.name} arrived after {lost_s:.1f} s": "watch.json#nodes",
            f"rank {victim.rank} was the first on another host to fail, at {first.t_s:.1f} s, because a peer was gone": f"{victim.source}/exception.json",
        },
        gaps=(f"what ended the ranks on {node.name} is unknown: no evidence of that host is left",),
        fix=f"Find what became of {node.name}: a reboot, the OOM killer, a scheduler that took it back, or someone who stopped nsadiag there.",
        next=f"the run directory on {node.name}, if it still has one: nsadiag analyze it there",
    )


RULE = Rule(
    concludes=("network_stall", "rank_killed"),
    family="exit",
    detected="In a job on several hosts one host stopped responding, and the remaining ranks wait for its ranks, or failed because they were gone.",
    fix="Check the lost host and the network to it.",
    actions=("exclude host", "retry"),
    check=lost_host,
    needs=("looks",),
    explained_by=("rank_exception",),
    confused_with=("missing_rank", "rank_exception"),
)
