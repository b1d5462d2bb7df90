"""A rank was ended by a signal that neither the launcher nor we sent; its peers only followed."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from nsadiag.analysis import places
from nsadiag.analysis.breaks import first_break
from nsadiag.analysis.load import CellEvidence, RankEvidence
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.records import Evidence, Finding, Rejected, Where

FIXES = {
    signal.SIGKILL: "Find who sent it: the kernel's OOM killer (dmesg, memory.events), a scheduler's limit, or a memory guard.",
    signal.SIGSEGV: "The fault is in native code: run the line shown under a debugger, or without that extension.",
    signal.SIGABRT: "Native code gave up: its last words are in the rank's stderr.log.",
    signal.SIGBUS: "A mapped file shrank or /dev/shm is full: look at df -h /dev/shm and at the loader's workers.",
}


def _last_words(rank: RankEvidence) -> Where:
    found = places.of_faults(rank.faults) or places.of_black_box(rank)
    return Where(step=rank.end.get("steps")).at(found)


def rank_killed(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    first = first_break(cell)
    if first is None or first.kind != "killed":
        return
    rank, number = first.rank, int(first.rank.end["signal"])
    name = signal.Signals(number).name
    died_in_c = number != signal.SIGKILL and "Fatal Python error" in rank.faults
    evidence = [
        Evidence(
            claim=f"rank {rank.rank} ended by {name} at {first.t_s:.1f} s, before any other rank broke",
            source="ends.json",
        )
    ]
    if died_in_c:
        evidence.append(
            Evidence(
                claim="faulthandler wrote the stack at the moment of death",
                source=f"{rank.source}/faults.log",
            )
        )
    yield Finding(
        detector="rank_killed",
        cls="rank_killed",
        outcome="crashed",
        confidence=0.95,
        summary=f"Rank {rank.rank} was killed by {name} after {rank.end.get('steps', 0)} steps; the other ranks only lost their peer.",
        guilty_ranks=(rank.rank,),
        blocked_ranks=tuple(r.rank for r in cell.ranks if r.rank != rank.rank),
        where=_last_words(rank),
        evidence=tuple(evidence),
        rejected=(
            Rejected(
                cls="rank_exception", because="no rank raised an exception of its own before the signal"
            ),
        ),
        fix=FIXES.get(signal.Signals(number), f"Find out who sends {name} to a training process."),
    )
