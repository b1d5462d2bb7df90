"""Reasons to decline that several rules share; reports show them under "Ruled out"."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts.exceptions import first_of, headline
from nsadiag.analysis.facts.exits import breaks, first_break
from nsadiag.analysis.facts.groups import newest_dump
from nsadiag.analysis.facts.thread_state import Doing
from nsadiag.analysis.records import CellEvidence, Collected, Declined, RankEvidence
from nsadiag.analysis.relations.blocked import blocked_ranks
from nsadiag.analysis.relations.invariants.operations import source, steps_of
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.rules.drafts import at_line, named
from nsadiag.analysis.rules.rule import Need
from nsadiag.evidence.documents.watch import NO_END
from nsadiag.evidence.phrases import count, these

# States of a main thread in the last capture.
STATES: dict[Doing, str] = {
    "collective": "waits in a collective",
    "transfer": "waits in a send or receive",
    "rendezvous": "joins or leaves a process group",
    "store": "waits for a key in the store",
    "backward": "is in backward",
    "loader": "waits for its DataLoader",
    "queue": "is blocked on a queue",
    "lock": "is blocked on a lock or a thread",
    "process": "waits for a child process",
    "socket": "waits on a socket",
    "pipe": "waits on a pipe",
    "io": "reads or writes a file",
    "sleep": "is in a timed sleep",
    "signal": "waits for a signal",
    "leaving": "has finished its work",
    "python": "runs Python code",
    "native": "runs native code",
    "kernel": "is in the kernel",
    "stopped": "is stopped",
    "unknown": "is in a wait of unknown kind",
}


def everyone(cell: CellEvidence) -> str:
    """All ranks that left anything, by number."""
    return named(cell, [rank.rank for rank in cell.ranks]) if cell.ranks else "ranks that left nothing"


def in_recorded_steps(case: Case, fact: str) -> Iterator[Declined]:
    """A fact of all recorded steps, with their number; or that none was recorded."""
    steps = steps_of(case)
    if not steps:
        yield Declined(f"no step of {everyone(case.cell)} was recorded by its operations")
        return
    yield Declined(f"in {count(len(steps), 'recorded step')} of {everyone(case.cell)} {fact}", source(case))


def not_still(cell: CellEvidence) -> Iterator[Declined]:
    """Reasons against a still job: something moved at the last snapshot, or there was none."""
    if cell.collected is not None:
        yield from _not_stuck(cell, cell.collected)
        return
    last, quiet_s = cell.watch.last_look, cell.watch.longest_quiet_s
    if last is None:
        # Clocks of two sources differ by a little.
        longest = f" (the longest silence was {max(0.0, quiet_s):.1f} s)" if quiet_s is not None else ""
        yield Declined(
            f"no snapshot found the job still: it was never silent for long enough{longest}", "watch.json"
        )
    elif not is_still(cell):
        found = last.reason or last.judgement
        yield Declined(f"the job was not still at the last snapshot: {found}", "watch.json#looks")


def _not_stuck(cell: CellEvidence, told: Collected) -> Iterator[Declined]:
    """The same of evidence that other tools left."""
    if told.is_stuck:
        return
    broke = next((rank for rank in cell.ranks if rank.exception or rank.end != NO_END), None)
    if broke is not None:
        yield Declined(f"rank {broke.rank} ended, by what these files say", broke.source)
    elif told.movement == "moved":
        stacked = [r.rank for r in cell.ranks if any(c.stacks for c in r.captures)]
        yield Declined(
            f"of {these(stacked)} some stood at other lines in the next stack: the job moved",
            cell.rank(stacked[0]).source,
        )
    elif told.movement == "young":
        yield Declined(f"the first call had been pending for {told.pending_s:.1f} s", cell.ranks[0].source)


def hung(cell: CellEvidence) -> Declined:
    """A job that was stopped as hung and is therefore not slow."""
    last = cell.watch.last_look
    if cell.collected is not None:
        seen = [r.rank for r in cell.ranks if r.captures]
        return Declined(
            f"nothing shows that {these(seen)} moved, and somebody waits",
            cell.rank(seen[0]).source if seen else None,
        )
    return Declined(
        f"nothing moved: {(last.reason if last else '') or 'the job was stopped as hung'}", "watch.json#looks"
    )


def other_break(cell: CellEvidence) -> Iterator[Declined]:
    """The rank that failed first, and how; or how the ranks ended if none failed."""
    first = first_break(cell)
    if first is None:
        yield Declined(_without_a_break(cell), "ends.json")
    elif first.kind == "exception" and first.rank.exception:
        yield Declined(
            f"rank {first.rank.rank} was the first to fail: it raised {headline(first_of(first.rank.exception))}",
            f"{first.rank.source}/exception.json",
        )
    else:
        how = "was killed by a signal" if first.kind == "killed" else "exited by itself"
        yield Declined(
            f"rank {first.rank.rank} was the first to fail: it {how} at {first.rank.end.t_s or first.t_s:.1f} s",
            "ends.json",
        )


def _without_a_break(cell: CellEvidence) -> str:
    if followed := sorted({b.rank.rank for b in breaks(cell) if b.follows_a_peer}):
        return f"{these(followed)} failed only because a peer was gone or too late"
    if ended := [r.rank for r in cell.ranks if r.end.by_us]:
        return f"{these(ended)} ran until the job was stopped"
    if done := [r.rank for r in cell.ranks if r.end.t_s is not None]:
        return f"{these(done)} reached the end of the script"
    return "no rank is known to have ended"


def blocked_elsewhere(case: Case, states: Collection[str] = (), sought: str = "") -> Iterator[Declined]:
    """The states of ranks that wait for no peer; `states` are those that the rule looks for, and `sought` names them."""
    found = blocked_ranks(case)
    for blocked in found[:4]:
        state = blocked.state
        where = at_line(state.place)
        if state.doing not in states:
            more = f"; it {sought}" if sought else ""
        else:
            more = "" if state.same else ", and moved to other lines between the snapshots"
        yield Declined(f"rank {blocked.number} {STATES[state.doing]}{where}{more}", blocked.source)
    if not found and case.thread_states:
        seen = named(case.cell, case.thread_states)
        yield Declined(f"by the stacks of {seen} none waits for anything but its peers")


# By kind of evidence: its name, and whether a rank left any.
EVIDENCE: dict[Need, tuple[str, Callable[[RankEvidence], bool]]] = {
    "black_boxes": ("recorder", lambda rank: rank.recording.header is not None),
    "stacks": ("stack", lambda rank: any(capture.stacks for capture in rank.captures)),
    "flight_recorders": ("flight recorder", lambda rank: bool(newest_dump(rank))),
    "ends": ("end", lambda rank: rank.end != NO_END),
}


def lacking(cell: CellEvidence, needs: Sequence[Need]) -> Iterator[Declined]:
    """Evidence that a rule needs and that is missing."""
    for need in needs:
        if need == "sources" and not cell.sources:
            yield Declined(f"no source of the code that {everyone(cell)} ran is available")
        elif need == "looks" and not cell.watch.looks:
            yield Declined(f"no snapshot was taken in a silence of {everyone(cell)}", "watch.json")
        elif need in EVIDENCE:
            name, is_there = EVIDENCE[need]
            if without := [rank.rank for rank in cell.ranks if not is_there(rank)]:
                yield Declined(f"no {name} of {these(without)}")
