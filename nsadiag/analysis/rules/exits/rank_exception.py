"""The first exception on any rank, also one that was swallowed or held back; peers that fail or wait are victims."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import (
    device_assert,
    first_of,
    follows_a_peer,
    headline,
    is_of_a_collective,
    is_told_late,
    memory_of,
    place_of,
)
from nsadiag.analysis.facts.exits import Break, breaks, first_break
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.relations.blocked import hung_ranks
from nsadiag.analysis.relations.pending import is_still
from nsadiag.analysis.relations.suppressed_exceptions import (
    Swallowed,
    gone_on,
    has_left,
    in_flight,
    peers_failed,
)
from nsadiag.analysis.rules.drafts import all_but, at_line, hung_or_crashed, inside_rank
from nsadiag.analysis.rules.exits.child_exceptions import has_dead, in_children, waits_for_children
from nsadiag.analysis.rules.exits.missing_files import unmade
from nsadiag.analysis.rules.reasons import other_break
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.exceptions import Cause, Raised
from nsadiag.evidence.records import Act, Place, Strength, Where

# The same first words on another rank within this time is the same mistake, not a consequence.
TOGETHER_S = 1.0
HEARD_LATE = "a kernel fails while the host is further on: the line is where the rank heard of it, and not where the kernel was launched"
OF_A_KERNEL = "Look at what the kernels before that line were given: an assertion of a gather, an index or a loss kernel is nearly always an index out of its range (a token beyond the vocabulary, a position beyond the context, a label beyond the classes)."
LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING=1 nsadiag run -- <the same command>, to see the launch that fails"
# Types that say of the network, or of a service, that it was not there this once; and what a broken device says of itself.
OF_THE_NETWORK = frozenset({
    "ConnectionError", "ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError", "TimeoutError",
    "URLError", "HTTPError", "ReadTimeout", "ConnectTimeout", "ReadTimeoutError", "IncompleteRead",
})  # fmt: skip
DEVICE_BROKE = re.compile(r"uncorrectable (NVLink|ECC) error|hardware error|GPU is lost", re.IGNORECASE)
MEMORY = {
    "gpu": "Give this rank less at once (a smaller or shorter batch, activation checkpointing), and let all ranks skip a batch together or not at all.",
    "host": "The machine has no memory left to give: load less at once, use fewer workers, or raise the limit (ulimit -v, the cgroup's).",
}


def _class_of(exception: Cause) -> str:
    return "gpu_oom" if memory_of(exception) == "gpu" else "rank_exception"


def _fix(exception: Cause, otherwise: str) -> str:
    return MEMORY.get(memory_of(exception) or "", otherwise)


def _peers_at(case: Case, guilty: tuple[int, ...]) -> Place | None:
    """The line where the others wait; of a crash, where they broke, since a snapshot was at what came before."""
    if hung_or_crashed(case.cell) == "crashed":
        broke = (
            locations.of_exception(r.exception)
            for r in case.cell.ranks
            if r.rank not in guilty and r.exception
        )
        return next((at for at in broke if at), None)
    return next((s.place for rank, s in case.thread_states.items() if rank not in guilty and s.place), None)


def rank_exception(case: Case) -> Iterator[Draft | Declined]:
    first = first_break(case.cell)
    exception = first.rank.exception if first and first.kind == "exception" else None
    if exception is None or is_of_a_collective(first_of(exception)):
        yield from _not_fatal(case)
    if first is not None and exception is not None:
        yield _fatal(case, first, exception)
    elif first is None and hung_or_crashed(case.cell) == "crashed" and _failed_again(case.cell):
        yield from _of_an_attempt(case.cell)
    yield from _in_a_child(case)
    yield from _of_a_file(case)
    yield from other_break(case.cell)


def _fatal(case: Case, first: Break, exception: Raised) -> Draft:
    root = first_of(exception)
    said = headline(root)
    alike = [b.rank.rank for b in breaks(case.cell) if _is_like(b, first)]
    victims = [b for b in breaks(case.cell) if b.rank.rank not in alike]
    source = f"{first.rank.source}/exception.json"
    evidence = {f"rank {first.rank.rank} raised {said} at {first.t_s:.1f} s, first of all": source}
    if root is not exception:
        evidence[f"what ended it came of that: {headline(exception)}"] = source
    if hidden := exception.hidden:
        at = place_of(hidden)
        claim = f"it was raised in place of {headline(hidden)}" + at_line(at)
        evidence[claim] = source
    for v in victims[:3]:
        if v.rank.exception:
            claim = f"rank {v.rank.rank} failed {v.t_s - first.t_s:.1f} s later: {v.rank.exception.type}"
            evidence[claim] = f"{v.rank.source}/exception.json"
    late = is_told_late(root)
    of_kernel = device_assert(first.rank.stderr_tail) if late else None
    if of_kernel:
        evidence[f"its GPU said: {of_kernel}"] = f"{first.rank.source}/stderr.log"
    everyone = len(case.cell.everyone(alike)) == case.cell.world_size > 1
    who = "Every rank" if everyone else f"Rank {case.cell.names(alike)}"
    mend = (
        "Fix the line shown; the other ranks' errors go away with it." if victims else "Fix the line shown."
    )
    return Draft(
        cls=_class_of(root),
        outcome=hung_or_crashed(case.cell),
        strength=Strength.CONCLUSIVE,
        summary=f"{who} raised {said}" + (f" ({of_kernel})" if of_kernel else ""),
        guilty_ranks=tuple(sorted(set(alike))),
        blocked_ranks=all_but(case.cell, alike),
        where=Where(step=first.rank.end.steps).at(place_of(root) or place_of(exception)),
        peers_at=_peers_at(case, tuple(alike)),
        evidence=evidence,
        gaps=(HEARD_LATE,) if late else (),
        fix=OF_A_KERNEL if late else _fix(root, mend),
        next=LAUNCH_BLOCKING if late else None,
        actions=_actions(root),
    )


def _actions(root: Cause) -> tuple[Act, ...]:
    """The next step: to try again after what a network or a device raises; all else is the code's."""
    if DEVICE_BROKE.search(root.message):
        return ("exclude host", "retry")
    return ("retry",) if root.type.rpartition(".")[2] in OF_THE_NETWORK else ("fix code",)


def _in_a_child(case: Case) -> Iterator[Draft]:
    """A process of the rank's own died of it, and the rank waits for what that would have sent."""
    for blocked in hung_ranks(case):
        if not waits_for_children(blocked):
            continue
        for told in in_children(blocked.rank)[:1]:
            waits_at = at_line(blocked.state.place)
            yield inside_rank(
                case.cell,
                blocked,
                strength=Strength.STRONG if has_dead(blocked) else Strength.LIKELY,
                summary=f"A child process of rank {blocked.number} ({told.name}) raised {headline(told.exception)}, and the rank waits{waits_at} for what it would have sent.",
                where=place_of(told.exception),
                evidence={
                    f"{told.name} raised {headline(told.exception)}": f"{blocked.rank.source}/stderr.log",
                    f"the main thread of rank {blocked.number} waits{waits_at} for a process of its own": blocked.source,
                },
                fix="Fix the line shown; catch what the child raises and send it to the rank, or wait with a timeout and ask whether the child lives.",
            )


def _of_a_file(case: Case) -> Iterator[Draft]:
    """A rank waits for a file that another's code would have made, had it not failed and gone on."""
    found = unmade(case)
    if found is None:
        return
    guilty, blocked = tuple(sorted(found.rows)), found.blocked
    row = found.rows[guilty[0]][1]
    thread = "" if row.in_main_thread else f" in its thread {row.thread}"
    waits_at = at_line(blocked.state.place)
    yield dataclasses.replace(
        inside_rank(
            case.cell,
            blocked,
            strength=Strength.STRONG,
            summary=f"Rank {case.cell.names(guilty)} raised {headline(first_of(row))}{thread} and went on; rank {blocked.number} waits{waits_at} for the file that it would have made.",
            where=place_of(first_of(row)) or place_of(row),
            evidence={
                **{
                    f"rank {number} raised {headline(first_of(each))}{thread} at step {each.step}, once, and did not end": f"{case.cell.rank(number).source}/raised.jsonl#{line}"
                    for number, (line, each) in sorted(found.rows.items())[:4]
                },
                f"rank {blocked.number} asks again and again: `{found.asks}`; the name {found.name!r} stands there, and in the lines that the exception kept from running": blocked.source,
            },
            fix="Let the exception end the rank, or tell the others of it (a marker of failure, an all_reduced flag); and give the loop that waits a limit.",
        ),
        guilty_ranks=guilty,
        blocked_ranks=all_but(case.cell, guilty),
        peers_at=blocked.state.place,
    )


def _of_an_attempt(cell: CellEvidence) -> Iterator[Draft]:
    """The launcher restarted the ranks after it, and the new ones only failed to find each other."""
    ended = [(number, e, rank) for rank in cell.ranks for number, e in rank.attempts if _is_own(e)]
    if not ended:
        return
    number, exception, rank = min(ended, key=lambda row: (-row[0], row[1].t_mono_ns))
    root = first_of(exception)
    yield Draft(
        cls=_class_of(root),
        strength=Strength.STRONG,
        summary=f"Rank {rank.rank} raised {headline(root)} in attempt {number}; the launcher restarted all ranks, and these only failed to reach one another.",
        guilty_ranks=(rank.rank,),
        blocked_ranks=all_but(cell, (rank.rank,)),
        where=Where().at(place_of(root) or place_of(exception)),
        evidence={
            f"rank {rank.rank} raised {headline(root)}, first of all in attempt {number}": f"{rank.source}/attempts/{number:02d}/exception.json",
            **{
                f"rank {b.rank.rank} failed in the last attempt: {headline(b.rank.exception)}": f"{b.rank.source}/exception.json"
                for b in breaks(cell)[:3]
                if b.rank.exception
            },
        },
        fix=_fix(root, "Fix the line shown: without it there would have been no restart."),
    )


def _failed_again(cell: CellEvidence) -> bool:
    """Whether the last attempt broke too: one that ran to its end has made good what went wrong before."""
    return any(b.kind != "exited" or b.follows_a_peer or b.rank.end.exit_code for b in breaks(cell))


def _is_own(exception: Raised) -> bool:
    root = first_of(exception)
    main = exception.in_main_thread
    return main and not follows_a_peer(root) and not is_of_a_collective(root)


def _is_like(other: Break, first: Break) -> bool:
    """Whether this rank made the same mistake at about the same time."""
    if other.follows_a_peer or not other.rank.exception or not first.rank.exception:
        return False
    same = first_of(other.rank.exception).type == first_of(first.rank.exception).type
    return same and other.t_s - first.t_s < TOGETHER_S


def _not_fatal(case: Case) -> Iterator[Draft]:
    """It came first, and what the job died of or hangs in is its consequence."""
    blocked = is_still(case.cell) or case.cell.stopped == "hang"
    # What it meets there may not fit what its peers are at: then the transport breaks, and says nothing of it.
    lost = bool(breaks(case.cell)) and first_break(case.cell) is None
    if (blocked or lost) and (held := in_flight(case)):
        yield _finding(case, held, "and nobody saw it: the rank waits for its peers before it is printed")
    failed = blocked or bool(breaks(case.cell) and _broke(case.cell)) or peers_failed(case.cell)
    if failed and (swallowed := gone_on(case)):
        yield _finding(case, swallowed, _then(swallowed))


def _then(swallowed: Swallowed) -> str:
    """The rest of the story, of the rank and its peers."""
    code = swallowed.rank.end.exit_code
    if code is not None and has_left(swallowed.rank):
        return f"and ended with exit code {code}; its peers wait for what it never did"
    how = "in a thread" if swallowed.row.how == "thread" else "and swallowed it"
    return f"{how}, so that its peers wait for what it never did"


def _broke(cell: CellEvidence) -> bool:
    return first_break(cell) is not None or any(b.follows_a_peer for b in breaks(cell))


def _finding(case: Case, found: Swallowed, then: str) -> Draft:
    row, rank = first_of(found.row), found.rank
    step = found.row.step
    held = found.row.how == "in flight"
    place = place_of(row) or place_of(found.row)
    during = f" in {found.row.during}" if found.row.how == "left" else ""
    return Draft(
        cls=_class_of(row),
        outcome=hung_or_crashed(case.cell),
        strength=Strength.CONCLUSIVE if held else Strength.STRONG,
        summary=f"Rank {rank.rank} raised {headline(row)}{during} at step {step}, {then}.",
        guilty_ranks=(rank.rank,),
        blocked_ranks=all_but(case.cell, (rank.rank,)),
        where=Where(step=step, phase=_phase(found.row)).at(place),
        peers_at=_peers_at(case, (rank.rank,)),
        evidence={
            f"rank {rank.rank} raised {headline(row)}{during} at {found.t_s:.1f} s, and "
            + _end_of(rank): found.source,
            found.why: f"{rank.source}/blackbox.bin",
        },
        fix=_fix(
            row,
            "Let the exception end the rank: no collective in a `finally` or `except` that the others do not enter."
            if held
            else "Let the exception end the rank, or let all ranks agree to skip the batch (all_reduce a flag) before any goes on.",
        ),
    )


def _end_of(rank: RankEvidence) -> str:
    """Its end after that, in words."""
    code = rank.end.exit_code
    if code is None or not has_left(rank):
        return "did not end"
    return "ended later" if code else "ended later with exit code 0"


def _phase(row: Raised) -> str | None:
    return row.during if row.how == "left" and row.during in ("forward", "backward", "input") else None


RULE = Rule(
    name="rank_exception",
    concludes=("rank_exception", "gpu_oom"),
    means={
        "rank_exception": "A rank raised; peers that wait or fail afterwards are victims.",
        "gpu_oom": "The GPU's allocator found no memory.",
    },
    family="exit",
    outcome="crashed",
    detected="the first exception of a main thread on any rank; peers that fail or wait afterwards are victims, and errors that only say that a peer is gone never count as first. Also one that did not end its rank: swallowed by an `except` (its rank left a forward or backward that its peers ran, did no step after, or came to where it waits after fewer steps than ever, by as many as it swallowed), raised in a thread or a child process for which the main thread waits, held back by a `finally` that entered a collective, kept by who caught it from making the file that another rank asks for again and again (at 80 %: the same name stands in both lines), of an attempt before a restart in which the ranks only failed to meet, or of a process that had not said yet which rank it is. A connection that is lost is another's fault only where it may be one to a peer. Of a chain, what the last one was raised from, or took the place of where a clean-up failed that would have let it go on. What CUDA reports late, of a kernel launched before, is reported as such, with what the kernel said",
    fix="Fix the line shown; the other ranks' errors go away with it.",
    check=rank_exception,
    needs=("ends",),
    explained_by=("ddp_unused_parameter",),
    confused_with=(
        "rank_killed",
        "rank_exited_early",
        "missing_rank",
        "local_lock_deadlock",
        "external_wait",
    ),
)
