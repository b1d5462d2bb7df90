"""The first exception on any rank, swallowed or delayed ones included; peers that fail or wait are victims."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.exceptions import (
    device_assert,
    first_of,
    headline,
    is_of_a_collective,
    is_told_late,
    place_of,
    says_assert,
)
from nsadiag.analysis.facts.exits import Break, breaks, first_break, unordered
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.relations.blocked import hung_ranks
from nsadiag.analysis.relations.messages.received import misled
from nsadiag.analysis.relations.suppressed_exceptions import (
    Swallowed,
    gone_on,
    has_left,
    in_flight,
    peers_failed,
)
from nsadiag.analysis.rules.drafts import at_line, hung_or_crashed, inside_rank, last_look, named
from nsadiag.analysis.rules.exits.child_exceptions import child_exceptions, has_dead_child, waits_for_children
from nsadiag.analysis.rules.exits.exception_advice import NO_ORDER, actions_of, class_of, fix_of, next_of
from nsadiag.analysis.rules.exits.missing_files import missing_file
from nsadiag.analysis.rules.exits.restarts import before_a_restart, last_attempt_failed
from nsadiag.analysis.rules.reasons import other_break
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.exceptions import Raised
from nsadiag.evidence.phrases import these
from nsadiag.evidence.records import Place, Strength, Where

# The same message on another rank within this time is the same mistake, not a consequence.
TOGETHER_S = 1.0
SEEN_LATER_S = 0.05  # what is shown as 0.0 s says no more than the order of lines
REPORTED_LATE = "a kernel fails while the host runs ahead: the line is where CUDA reported it, not where the kernel was launched"
KERNEL_FIX = "Check the inputs of the kernels before that line: an assertion in a gather, index or loss kernel is nearly always an index out of range (a token beyond the vocabulary, a position beyond the context, a label beyond the classes)."
LAUNCH_BLOCKING = "CUDA_LAUNCH_BLOCKING=1 nsadiag run -- <the same command>, to see the launch that fails"
PHASES = ("forward", "backward", "input")


def rank_exception(case: Case) -> Iterator[Draft | Declined]:
    cell, first = case.cell, first_break(case.cell)
    exception = first.rank.exception if first and first.kind == "exception" else None
    if exception is None or is_of_a_collective(first_of(exception)):
        yield from _survived(case)
    if unfit := misled(case):
        yield Declined(
            f"rank {unfit.rank} failed on what it received in a call that its peers did not make at that point",
            f"{unfit.source}/exception.json",
        )
    elif first is not None and exception is not None:
        yield _fatal(case, first, exception)
    elif first is None and hung_or_crashed(cell) == "crashed" and last_attempt_failed(cell):
        yield from before_a_restart(cell)
    yield from _in_a_child(case)
    yield from _kept_from_writing(case)
    yield from other_break(cell)


def _fatal(case: Case, first: Break, exception: Raised) -> Draft:
    cell, rank, root = case.cell, first.rank, first_of(exception)
    source = exception.source or f"{rank.source}/exception.json"
    alike = [b.rank.rank for b in breaks(cell) if _is_like(cell, b, first)]
    tied = [b for b in unordered(cell, first) if b.rank.rank not in alike]
    victims = [b for b in breaks(cell) if b.rank.rank not in alike and b not in tied]
    evidence = {f"rank {rank.rank} {_when(case, first, alike)}: {headline(root)}": source}
    if root is not exception:
        evidence[f"it ended by an exception that this one caused: {headline(exception)}"] = source
    if hidden := exception.hidden:
        evidence[f"it was raised in place of {headline(hidden)}{at_line(place_of(hidden))}"] = source
    for other in tied[:3]:
        if raised := other.rank.exception:
            evidence[f"rank {other.rank.rank} raised: {headline(first_of(raised))}"] = raised.source
    for victim in victims[:3]:
        if raised := victim.rank.exception:
            later_s = victim.t_s - first.t_s
            later = (
                f" {later_s:.1f} s later"
                if later_s >= SEEN_LATER_S or not cell.collected
                else ", because of it or on its own"
            )
            claim = f"rank {victim.rank.rank} failed{later}: {raised.type}"
            evidence[claim] = f"{victim.rank.source}/exception.json"
    late = is_told_late(root)
    kernel = device_assert(rank.stderr_tail) if late else None
    if kernel:
        evidence[f"its GPU said: {kernel}"] = f"{rank.source}/stderr.log"
    everyone = len(cell.everyone(alike)) == cell.world_size > 1
    acts = actions_of(root)
    # What several ranks of somebody else's log meet in what they run on is no rank's fault.
    is_shared = cell.collected is not None and len(alike) > 1 and acts[0] != "fix code"
    who = "Every rank" if everyone else named(cell, alike).capitalize()
    advice = (
        "Fix the line shown; the other ranks' errors go away with it." if victims else "Fix the line shown."
    )
    guilty = tuple(sorted({*alike, *(b.rank.rank for b in tied)}))
    said = f"{who} raised {headline(root)}" + (f" ({kernel})" if kernel else "")
    if tied:
        others = cell.everyone(b.rank.rank for b in tied)
        said = f"{said.rstrip('.')}, and {these(others)} another error; nothing tells which came first"
    return Draft(
        cls=class_of(root),
        strength=Strength.GUESS if tied else Strength.CONCLUSIVE,
        summary=said,
        guilty_ranks=() if is_shared else guilty,
        blocked_ranks=tuple(sorted({b.rank.rank for b in breaks(cell)})) if is_shared else None,
        at=place_of(root) or place_of(exception) or locations.of_faults(rank.faults),
        where=Where(step=rank.end.steps),
        peers_at=_peers_at(case, alike),
        evidence=evidence,
        gaps=(*([REPORTED_LATE] if late else []), *([NO_ORDER] if tied else [])),
        fix=KERNEL_FIX if kernel or says_assert(root) else fix_of(root, advice),
        next=LAUNCH_BLOCKING if late else next_of(root),
        actions=acts,
    )


def _when(case: Case, first: Break, alike: Collection[int]) -> str:
    """The words for when it raised: a log may have no times, and of several that raised the same none was first."""
    if case.cell.collected is None or (case.cell.started_mono_ns and len(alike) == 1):
        return f"was the first to raise, at {first.t_s:.1f} s"
    return "raised"


def _is_like(cell: CellEvidence, other: Break, first: Break) -> bool:
    """Whether this rank raised the same exception at about the same time."""
    if other.follows_a_peer or not other.rank.exception or not first.rank.exception:
        return False
    mine, others = first_of(first.rank.exception), first_of(other.rank.exception)
    if mine.type == others.type and other.t_s - first.t_s < TOGETHER_S:
        return True
    # Of ranks that somebody else's log tells of, the same words are the same mistake, however late they came to it.
    return cell.collected is not None and headline(mine) == headline(others)


def _peers_at(case: Case, guilty: Collection[int]) -> Place | None:
    """The line where the others wait; in a crash the line where they failed, since snapshots are older."""
    others = [rank for rank in case.cell.ranks if rank.rank not in guilty]
    if hung_or_crashed(case.cell) == "crashed":
        places = (locations.of_exception(r.exception) for r in others if r.exception)
    else:
        places = (state.place for r in others if (state := case.thread_states.get(r.rank)))
    return next((place for place in places if place), None)


def _in_a_child(case: Case) -> Iterator[Draft]:
    """An exception in a child process, whose result the rank still waits for."""
    for blocked in (each for each in hung_ranks(case) if waits_for_children(each)):
        for child in child_exceptions(blocked.rank)[:1]:
            raised, waits_at = headline(child.exception), at_line(blocked.state.place)
            yield inside_rank(
                case.cell,
                blocked,
                strength=Strength.STRONG if has_dead_child(blocked) else Strength.LIKELY,
                summary=f"A child process of rank {blocked.number} ({child.name}) raised {raised}, and the rank waits{waits_at} for its result.",
                at=place_of(child.exception),
                evidence={
                    f"{child.name} raised {raised}": f"{blocked.rank.source}/stderr.log",
                    f"the main thread of rank {blocked.number} waits{waits_at} for a child process": blocked.source,
                },
                fix="Fix the line shown; catch exceptions in the child and send them to the rank, or wait with a timeout and check whether the child is alive.",
            )


def _kept_from_writing(case: Case) -> Iterator[Draft]:
    """An exception that kept a rank from writing a file, for which another rank polls."""
    found = missing_file(case)
    if found is None:
        return
    guilty, blocked = tuple(sorted(found.rows)), found.blocked
    row = found.rows[guilty[0]][1]
    thread = "" if row.in_main_thread else f" in its thread {row.thread}"
    evidence = {
        f"rank {number} raised{thread} at step {each.step}, once, and did not end: {headline(first_of(each))}": f"{case.cell.rank(number).source}/raised.jsonl#{line}"
        for number, (line, each) in sorted(found.rows.items())[:4]
    }
    polls = f"rank {blocked.number} polls `{found.asks}`; the name {found.name!r} occurs there, and in the lines that the exception kept from running"
    yield Draft(
        strength=Strength.STRONG,
        summary=f"{named(case.cell, guilty).capitalize()} raised {headline(first_of(row))}{thread} and went on; rank {blocked.number} waits{at_line(blocked.state.place)} for the file that it would have written.",
        guilty_ranks=guilty,
        at=place_of(first_of(row)) or place_of(row),
        where=Where(collective=blocked.collective),
        peers_at=blocked.state.place,
        evidence={**evidence, polls: blocked.source, **last_look(case.cell)},
        fix="Let the exception end the rank, or report it to the others (a failure marker, an all_reduced flag); and give the polling loop a timeout.",
    )


def _survived(case: Case) -> Iterator[Draft]:
    """An exception that did not end its rank, of which the hang or crash is a consequence."""
    broke = breaks(case.cell)
    hangs = hung_or_crashed(case.cell) == "hung"
    # Its next calls may not match its peers', which breaks the transport without naming this cause.
    is_a_consequence = bool(broke) and first_break(case.cell) is None
    if (hangs or is_a_consequence) and (held := in_flight(case)):
        yield _swallowed(case, held, "and it was not printed: the rank waits for its peers first")
    failed = first_break(case.cell) is not None or any(b.follows_a_peer for b in broke)
    if (hangs or failed or peers_failed(case.cell)) and (found := gone_on(case)):
        yield _swallowed(case, found, _then(found))


def _swallowed(case: Case, found: Swallowed, then: str) -> Draft:
    row, rank, root = found.row, found.rank, first_of(found.row)
    left, held = row.how == "left", row.how == "in flight"
    during = f" in {row.during}" if left else ""
    advice = (
        "no collective in a `finally` or `except` that the others do not enter."
        if held
        else "or let all ranks agree to skip the batch (all_reduce a flag) before any continues."
    )
    return Draft(
        cls=class_of(root),
        strength=Strength.CONCLUSIVE if held else Strength.STRONG,
        summary=f"Rank {rank.rank} raised {headline(root)}{during} at step {row.step}, {then}.",
        guilty_ranks=(rank.rank,),
        at=place_of(root) or place_of(row),
        where=Where(step=row.step, phase=row.during if left and row.during in PHASES else None),
        peers_at=_peers_at(case, (rank.rank,)),
        evidence={
            f"rank {rank.rank} raised{during} at {found.t_s:.1f} s, and {_end_of(rank)}: {headline(root)}": found.source,
            found.why: f"{rank.source}/blackbox.bin",
        },
        fix=fix_of(root, f"Let the exception end the rank{':' if held else ','} {advice}"),
    )


def _then(found: Swallowed) -> str:
    """The rank's next action, and the call in which its peers wait."""
    code = found.rank.end.exit_code
    if has_left(found.rank):
        ended = "and ended" if code is None else f"and ended with exit code {code}"
        return f"{ended}; its peers wait for calls that it never made"
    how = "in a thread" if found.row.how == "thread" else "and swallowed it"
    return f"{how}, so that its peers wait for calls that it never made"


def _end_of(rank: RankEvidence) -> str:
    """The rank's end afterwards."""
    if not has_left(rank):
        return "did not end"
    return "ended later with exit code 0" if rank.end.exit_code == 0 else "ended later"


RULE = Rule(
    concludes=("rank_exception", "gpu_oom"),
    means={
        "rank_exception": "A rank raised an exception; peers that wait or fail afterwards are victims.",
        "gpu_oom": "The GPU's allocator ran out of memory.",
    },
    family="exit",
    detected="The first exception of a main thread on any rank counts; peers that fail or wait afterwards are victims, and an error that only reports a lost peer, or comes of what was received in a call that the peers did not make, is never the first. In a chain of exceptions the root counts, also where a failing clean-up replaced it. The exception need not have ended its rank: it may have been swallowed by an `except`, raised in a thread or a child process that the rank waits for, held back by a `finally` that entered a collective, or caught before the rank wrote a file that another rank polls for. It may also belong to an attempt before a restart in which the ranks only failed to find each other. An error that CUDA reports late is marked as such, with the kernel's message.",
    fix="Fix the line shown; the other ranks' errors go away with it.",
    check=rank_exception,
    needs=("ends",),
    explained_by=("ddp_unused_parameter", "stated_cause"),
    confused_with=(
        "rank_killed",
        "rank_exited_early",
        "missing_rank",
        "local_lock_deadlock",
        "external_wait",
    ),
)
