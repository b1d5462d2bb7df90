"""Ranks that did not meet at the start, or a transport that failed, by lines that are no exceptions of a known rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of, follows_a_peer
from nsadiag.analysis.records import Collected, Declined
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.messages import Fact, LostPeer, PortTaken, Rendezvous, TransportWarning
from nsadiag.evidence.phrases import count, these
from nsadiag.evidence.records import Act, Strength

MOST_CITED = 4
MEETING_FIX = "Let every node start with the same address, port and number of nodes: the address has to resolve to the first node on all of them, its port has to be open between them, and --nnodes has to be the number of nodes that do start."


def meeting_lines(case: Case) -> Iterator[Draft | Declined]:
    told = case.told
    raised = [r.exception for r in case.cell.ranks if r.exception] + [*case.cell.unnamed]
    if own := next((first_of(e) for e in raised if not follows_a_peer(first_of(e))), None):
        if told.said:
            yield Declined(f"a process raised {own.type}", told.said[0].source)
        return
    yield from _port(told)
    yield from _rendezvous(told)
    yield from _transport(told)
    yield from _no_connection(told, raised_any=bool(raised))


def _port(told: Collected) -> Iterator[Draft]:
    taken = told.of(PortTaken)
    if not taken:
        return
    port = next((str(fact.port) for fact, _ in taken if fact.port), "")
    yield _draft(
        taken,
        cls="rendezvous_mismatch",
        summary=f"Another process holds {f'port {port}' if port else 'the port'} on which the ranks were to meet.",
        fix="Another job, or what is left of an earlier one, holds that port: choose another one (--master-port, MASTER_PORT, or --rdzv-endpoint=HOST:0), or end that process.",
        next_step=f"ss -ltnp | grep {port or '<the port>'}",
        actions=("fix environment",),
    )


def _rendezvous(told: Collected) -> Iterator[Draft]:
    more = [(fact, source) for fact, source in told.of(Rendezvous) if fact.joined > fact.expected]
    if more:
        fact = more[-1][0]
        yield _draft(
            more,
            cls="rendezvous_mismatch",
            summary=f"The meeting counts {fact.joined} processes for a world of {fact.expected}: its store still holds those of an earlier start, or of another job.",
            fix="Give each start of the job a store of its own: another port, another --rdzv-id, or a fresh file for init_method='file://...'; and end what is left of the earlier one.",
            next_step="ss -ltnp | grep $MASTER_PORT; ls -l <the file of init_method>",
            actions=("fix environment",),
        )
    met = [(fact, source) for fact, source in told.of(Rendezvous) if fact.joined < fact.expected]
    if not met:
        return
    fact = met[-1][0]
    left = fact.expected - fact.joined
    # Who came and waited says so: where all of them do, the others are known.
    came = {rank for each, _ in met if (rank := told.rank_of(each)) is not None}
    absent = tuple(sorted({*range(fact.expected)} - came)) if len(came) == fact.joined else ()
    who = f": {these(absent)} never joined" if absent else f": {left} never joined"
    yield _draft(
        met,
        cls="rendezvous_mismatch",
        summary=f"Of {count(fact.expected, 'process')} only {fact.joined} came to the meeting{who}.",
        guilty=absent,
        fix=MEETING_FIX,
        next_step="getent hosts $MASTER_ADDR; nc -vz $MASTER_ADDR $MASTER_PORT   # on each node",
    )


def _transport(told: Collected) -> Iterator[Draft]:
    warned = [(fact, source) for fact, source in told.of(TransportWarning) if fact.about == "network"]
    if not warned:
        return
    peers = sorted({fact.peer for fact, _ in warned if fact.peer})
    hosts = sorted({fact.host for fact, _ in warned if fact.host})
    between = (
        f" between {hosts[0]} and {', '.join(peers[:3])}"
        if hosts and peers
        else f" to {', '.join(peers[:3])}"
        if peers
        else ""
    )
    yield _draft(
        warned,
        cls="network_stall",
        summary=f"NCCL's network transport failed{between}: {warned[0][0].text.splitlines()[0][:160]}",
        fix="Test the network between these hosts alone (nccl-tests on two of them; ibstat and the switch's counters for a port that is down or flaps), and start the job again without the host that fails.",
        next_step="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET <the same command>",
    )


def _no_connection(told: Collected, *, raised_any: bool) -> Iterator[Draft]:
    """A process that never got through to the first rank, and nothing else."""
    lost = [(fact, source) for fact, source in told.of(LostPeer) if fact.seconds]
    if raised_any or not lost:
        return
    fact = lost[0][0]
    to = f"{fact.peer}:{fact.port}" if fact.port else fact.peer or "the first rank"
    yield _draft(
        lost,
        cls="rendezvous_mismatch",
        summary=f"No connection to {to} came about within {fact.seconds:.0f} s: the process there had not started, or is not reached under that name and port.",
        fix=MEETING_FIX,
        next_step=f"getent hosts {fact.peer or '$MASTER_ADDR'}; nc -vz {fact.peer or '$MASTER_ADDR'} {fact.port or '$MASTER_PORT'}   # on each node",
    )


def _draft(
    facts: Sequence[tuple[Fact, str]],
    *,
    cls: str,
    summary: str,
    fix: str,
    next_step: str,
    guilty: tuple[int, ...] = (),
    actions: tuple[Act, ...] = ("unknown",),
) -> Draft:
    return Draft(
        cls=cls,
        outcome="crashed",
        strength=Strength.LIKELY,
        summary=summary,
        guilty_ranks=guilty,
        evidence={
            fact.text.splitlines()[0][:200]: source for fact, source in facts[:MOST_CITED] if fact.text
        },
        fix=fix,
        next=next_step,
        actions=actions,
    )


RULE = Rule(
    concludes=("rendezvous_mismatch", "network_stall"),
    about="collected",
    family="exit",
    detected="Lines of a log say that a port was taken, that fewer processes joined than were expected, that no connection to the first rank came about, or that NCCL's network transport failed; and no process raised an error of its own.",
    fix=MEETING_FIX,
    actions=("unknown",),
    check=meeting_lines,
    explained_by=("process_end", "unpublished_id"),
    confused_with=("rank_exception", "missing_rank"),
)
