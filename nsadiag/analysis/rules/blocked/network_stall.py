"""A collective that every member issued with the same arguments and that never completes: data does not arrive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.groups import is_of_a_log
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.relations.call_mismatch import in_black_boxes, in_recorders
from nsadiag.analysis.relations.pending import PendingCall, is_still, waits
from nsadiag.analysis.relations.wait_graph import graph_of
from nsadiag.analysis.rules.drafts import last_look, line_of
from nsadiag.analysis.rules.reasons import not_still
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.kernel import Descriptor
from nsadiag.evidence.phrases import all_of, call_name, group_name, these, waits_wait
from nsadiag.evidence.records import Strength, Where

# In a running job calls are pending for less.
IN_FLIGHT_S = 20.0
NO_LINK = "no stalled connection was seen: the transport may not be TCP, or may end on another machine"


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
        call = call_name("call", one.call, one.group)
        yield Declined(
            f"the ranks disagree on the {one.kind} of {call}: rank {rank} issued {asked.what}", asked.source
        )
        return
    links = stalled_links(case.cell)
    for wait in waits(case):
        by_log = not links and all(is_of_a_log(case.cell.rank(r)) for r in wait.waiting)
        if by_log and wait.seq > FIRST and _all_wait_in(case, wait):
            yield Declined(
                f"{these(wait.waiting)} timed out in the same call, and no line tells of a connection that failed",
                wait.source(case.cell, wait.waiting[0]),
            )
        elif _all_wait_in(case, wait):
            yield _draft(case, wait, links)
        else:
            yield Declined(
                f"of the members of {group_name(wait.group)} only {these(wait.waiting)} {waits_wait(wait.waiting)} in call #{wait.seq}",
                wait.source(case.cell, wait.waiting[0]) if wait.waiting else None,
            )


FIRST = 1  # the number of a group's first collective: before it nothing had ever arrived


def _all_wait_in(case: Case, wait: PendingCall) -> bool:
    """Whether all members issued it, none completed it, and all wait in it: no rank is missing."""
    members = case.groups.members(wait.group)
    everybody = not (wait.missing or wait.unseen or wait.late) and {*wait.waiting} == {*members}
    if case.cell.collected and not case.thread_states:
        # Dumps and timeouts show the call alone: for so long that it is no call of a running job.
        pending_s = case.cell.collected.pending_s
        return everybody and len(members) > 1 and pending_s is not None and pending_s > IN_FLIGHT_S
    states = [case.thread_states.get(rank) for rank in members]
    waiting = all(state is not None and state.doing in ("collective", "backward") for state in states)
    return everybody and len(members) > 1 and waiting


def _guilty(wait: PendingCall, links: list[Link]) -> tuple[int, ...]:
    """The rank at one end of all stalled connections, or else all ranks at their ends; all members if there is none."""
    pairs = {frozenset((link.rank, link.peer)) for link in links if link.peer is not None}
    ends = {rank for pair in pairs for rank in pair if rank in wait.waiting}
    common = [rank for rank in ends if all(rank in pair for pair in pairs)]
    if len(pairs) > 1 and len(common) == 1:
        return tuple(common)
    return tuple(sorted(ends)) or wait.waiting


def _draft(case: Case, wait: PendingCall, links: list[Link]) -> Draft:
    guilty = _guilty(wait, links)
    collective = wait.collective(guilty[0])
    call = call_name(collective.op, wait.seq, wait.group)
    evidence = {
        f"rank {r} issued {call} and is waiting in it": wait.source(case.cell, r) for r in wait.waiting[:4]
    }
    unacknowledged = []
    for link in links[:4]:
        to = link.to if link.peer is None else f"rank {link.peer}"
        unacknowledged.append(f"{link.bytes} bytes from rank {link.rank} to {to} are not acknowledged")
        claim = f"rank {link.rank} has {link.bytes} bytes to {link.to} in flight, the same in both snapshots"
        evidence[claim] = link.source
    seen = f": {'; '.join(unacknowledged)}" if links else ""
    if wait.seq <= FIRST:
        seen = f"{seen}: it is the first of that group, so that nothing has arrived on it yet"
    return Draft(
        strength=Strength.STRONG if links else Strength.WEAK,
        summary=f"{all_of(len(case.cell.everyone(wait.waiting))).capitalize()} are in {call} with the same arguments, and it {_lasted(case.cell)}{seen}.",
        # Without a connection that stalls nobody is more to blame than the others: of a call alone nobody is named.
        guilty_ranks=() if case.cell.collected and not links else guilty,
        blocked_ranks=wait.waiting
        if case.cell.collected and not links
        else tuple(sorted({*wait.waiting} - {*guilty})),
        at=line_of(case, guilty[:1])
        or locations.of_rank_now(case.cell.rank(guilty[0]))
        or wait.issued_at(case.cell, guilty[0]),
        where=Where(collective=collective),
        evidence={**evidence, **last_look(case.cell)},
        gaps=() if links else (NO_LINK,),
        next="NCCL_DEBUG=INFO nsadiag run -- <the same command>",
    )


def _lasted(cell: CellEvidence) -> str:
    pending_s = cell.collected.pending_s if cell.collected else None
    return (
        f"has not completed for {pending_s:.0f} s"
        if pending_s and pending_s < BELIEVED_S
        else "does not complete"
    )


BELIEVED_S = 2 * 86400.0  # a longer time since a dump's calls began says that the file was copied
MAPPED = "::ffff:"  # an IPv4 address as IPv6 sockets show it


@dataclass(frozen=True, kw_only=True)
class Link:
    """Bytes that a rank has sent and that stayed unacknowledged between two snapshots."""

    rank: int
    peer: int | None  # None: on another machine, or of no rank
    to: str
    bytes: int
    source: str


def stalled_links(cell: CellEvidence) -> list[Link]:
    """Connections with the same unacknowledged bytes in the last two snapshots."""
    owners = {(_plain(row.local), _plain(row.peer)): rank.rank for rank in cell.ranks for row in _last(rank)}
    found = []
    for rank in cell.ranks:
        before = {(row.local, row.peer): row for row in _last(rank, back=2)}
        for row in _last(rank):
            earlier = before.get((row.local, row.peer))
            if row.unsent and earlier and earlier.unsent == row.unsent:
                found.append(
                    Link(
                        rank=rank.rank,
                        peer=owners.get((_plain(row.peer), _plain(row.local))),
                        to=row.peer,
                        bytes=row.unsent,
                        source=f"{rank.captures[-1].source}/proc.json#fds",
                    )
                )
    return found


def _last(rank: RankEvidence, *, back: int = 1) -> list[Descriptor]:
    """The rank's established connections in the last snapshot, or the one `back` before."""
    shown = [c for c in rank.captures if c.proc.pid]
    if len(shown) < back:
        return []
    rows = shown[-back].proc.fds.open
    return [row for row in rows if row.kind == "tcp" and row.peer and row.state == "ESTABLISHED"]


def _plain(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{host.strip('[]').removeprefix(MAPPED)}:{port}"


RULE = Rule(
    means={"network_stall": "Every member issued the same collective, and it never completes."},
    family="waiting",
    detected="Every member issued the same collective and is waiting in it in both snapshots. If bytes on a TCP connection between two of them stay unacknowledged, its two ends are named.",
    fix="Check the network between these ranks: a firewall that drops idle connections, a flapping link, a wrong interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME), MTU.",
    actions=("exclude host", "retry"),
    check=network_stall,
    needs=("flight_recorders", "stacks"),
    explained_by=("missing_rank", "unseen_rank"),
    confused_with=("missing_rank", "collective_args_mismatch", "straggler_rank"),
)
