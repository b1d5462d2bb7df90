"""Ranks that have left a loop in which others still wait: the data ran out, or something made them leave."""

from __future__ import annotations

import re

from nsadiag.analysis.explain.candidates.loop_entry import counted_at, was_in
from nsadiag.analysis.explain.candidates.nested_loops import left_between_rounds
from nsadiag.analysis.explain.context import Divergence, Situation
from nsadiag.analysis.explain.result import Case, made, shown
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.call_paths import apart, held_by, is_in, passed_by, stands_behind
from nsadiag.evidence.records import Evidence, Place
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.source.control import Condition
from nsadiag.source.iterables import fillings, runs_its_items
from nsadiag.source.model import CallPath

# An end that somebody outside asked for is the end of that rank, not a branch of the training.
ASKED_TO_STOP = re.compile(r"signal|sigterm|preempt|spot|interrupt|terminat|shutdown|evict", re.IGNORECASE)


def left_loop(
    s: Situation,
    *,
    stayed: tuple[int, ...],
    left: tuple[int, ...],
    chains: tuple[CallPath, CallPath] | None = None,
    iteration: int | None = None,
) -> Divergence | None:
    """`chains` and `iteration`: where the two were when they parted, if that is not where they are now."""
    inside, outside = chains or (s.now(stayed[0]), s.now(left[0]))
    if not inside:
        return None
    loops = [
        g for g in (apart(s.program, inside, outside) if outside else held_by(s.program, inside)) if g.is_loop
    ]
    for number, loop in reversed([*enumerate(loops)]):
        # A loop over the parts of a model: fewer times round means fewer modules.
        if s.in_forward(loop):
            continue
        if chains is None and not went_round_less(s, loop, stayed[0], left[0], inside):
            continue
        if outside and _stands_in_a_branch(s, loop, inside, outside):
            continue
        # Who never was in it has not left it.
        if iteration is not None and not s.anchored_in(loop) and not was_in(s, loop, left[0], iteration):
            continue
        over = s.histories.count(left[0]) - 1 if iteration is None else iteration
        if s.anchored_in(loop) and _came_again(s, loop, stayed[0], left[0], over):
            continue
        outer = loops[number - 1] if number and chains is None else None
        if outer and s.anchored_in(loop) and left_between_rounds(s, outer, stayed=stayed[0], left=left[0]):
            continue
        guard = _why(s, loop, left[0])
        if guard is not None:
            tasks = guard is loop and runs_its_items(s.program, loop, inside)
            # Which of them are there on which ranks is decided where they are put in.
            apart_by_rank = any(f.guard for f in fillings(s.program, guard)) if guard is loop else False
            if not apart_by_rank or not (tasks or (chains is None and not _takes_inputs(s, loop))):
                return _made(s, loop, guard, stayed, left, iteration, tasks=tasks)
    return None


def went_round_less(s: Situation, loop: Condition, stayed: int, left: int, inside: CallPath) -> bool:
    """By what the two did in the loop and nowhere else; by the iterations that they began, if that is where they train."""
    histories = s.histories
    if not histories.tokens.get(stayed) or not histories.tokens.get(left):
        return stands_behind(s.program, s.now(left), s.now(stayed))
    if s.anchored_in(loop):
        return histories.count(stayed) > histories.count(left)
    at = counted_at(s, loop, inside, stayed)
    if at is None:
        return False
    if any(s.anchored_in(g) for g in held_by(s.program, inside) if g.is_loop):
        # It begins anew in each iteration, in a helper maybe: what was missed in earlier ones did not end it now.
        # Whoever left it may have come to the next forward since.
        ahead = histories.count(left) - histories.count(stayed)
        rounds = histories.was_at_lately(left, at, ahead) if ahead in (0, 1) else 0
        return histories.was_at_lately(stayed, at) > rounds > 0
    # Who never was in it has not left it.
    return histories.was_at(stayed, at) > histories.was_at(left, at) > 0


def _stands_in_a_branch(s: Situation, loop: Condition, inside: CallPath, outside: CallPath) -> bool:
    """Whether who left the loop waits behind a condition on the rank, in an outer loop that both are in.

    Then whoever passed by that may be in the loop's next round, however many there are in one.
    """
    behind = [*apart(s.program, outside, inside), *passed_by(s.program, outside, inside)]
    if not any(g.origin == "rank" and not g.is_loop for g in behind):
        return False
    loops = [g for g in held_by(s.program, inside) if g.is_loop]
    outer = loops[: next((n for n, g in enumerate(loops) if g == loop), 0)]
    return any(is_in(s.program, outside, g) for g in outer)


def _came_again(s: Situation, loop: Condition, stayed: int, left: int, over: int) -> bool:
    """Whether the one that is in the loop had left it as well, after the same iteration: it is in the next epoch's."""
    then, before = (s.histories.iteration(stayed, number) for number in (over, over - 1))
    asked, theirs = (
        sum(t.kind == Kind.DATA and t.place is not None and _is_head(s, loop, t.place) for t in tokens)
        for tokens in (then, s.histories.iteration(left, over))
    )
    if asked > theirs > 0:
        return True
    usual = {t.at for t in before}
    return bool(before) and any(_is_behind(s, loop, t.place) for t in then if t.place and t.at not in usual)


def _is_behind(s: Situation, loop: Condition, at: Place) -> bool:
    """Whether the loop's own function leads to the line from outside the loop, and nothing else does."""
    if not s.chains.is_sure(at):
        return False
    scope = s.program.scope_of(loop.file, loop.line)
    own = [p for p in s.chains.to(at) if s.program.scope_of(p.file, p.line) == scope]
    return bool(own) and not any(map(loop.holds, own))


def _why(s: Situation, loop: Condition, left: int) -> Condition | None:
    """The condition that ended it: the loop's own, or that of an early exit."""
    exits = [g for g in s.program.exits_of_loop(loop) if g.origin != "uniform"]
    if any(g.origin == "input" for g in exits):
        return next(g for g in exits if g.origin == "input")
    exhausted = _saw_the_end(s, loop, left)
    own = loop.kind == "while" and loop.test not in ("True", "1")
    if exhausted or (not exits and (loop.origin != "uniform" and (loop.kind == "for" or own))):
        return loop
    if exits:
        return exits[-1]
    return None


def _saw_the_end(s: Situation, loop: Condition, rank: int) -> bool:
    """Whether the last thing that the rank did in the loop was to ask for a batch, and it was not given one."""
    asked = used = -1
    gave = False
    for number, token in enumerate(s.histories.tokens.get(rank, ())):
        at = token.place
        if at is None:
            continue
        if token.kind == Kind.DATA and _is_head(s, loop, at):
            asked, gave = number, token.gave
        elif token.at == s.histories.anchor:
            used = number
    return asked > used >= 0 and not gave


def _is_head(s: Situation, loop: Condition, at: Place) -> bool:
    """The loop's own line, or a helper's that iterates for it."""
    if (at.file, at.line) == (loop.file, loop.line):
        return True
    return any(p.file == loop.file and p.line == loop.line for p in s.chains.to(at))


def _takes_inputs(s: Situation, loop: Condition) -> bool:
    """Whether any rank asked for a batch in the loop, or ran a model: else it goes over metrics, parameters, names."""
    tokens = (t for mine in s.histories.tokens.values() for t in mine if t.kind in (Kind.DATA, Kind.FORWARD))
    lines = {t.at: t.place for t in tokens}
    # Without any black box nothing speaks against it.
    return not lines or any(loop.holds(p) for at in lines.values() if at is not None for p in s.chains.to(at))


def _where_it_left(s: Situation, loop: Condition, line: Place, left: int) -> Place | None:
    """Where it went on to, in the loop's own function; where it waits in a helper, the loop says more of why."""
    here = s.here(left)
    own = s.program.scope_of(loop.file, loop.line)
    return here if here and s.program.scope_of(here.file, here.line) == own else line


def _made(
    s: Situation,
    loop: Condition,
    guard: Condition,
    stayed: tuple[int, ...],
    left: tuple[int, ...],
    iteration: int | None,
    *,
    tasks: bool,
) -> Divergence | None:
    """`tasks`: what the loop hands out is run, and no batch."""
    gone = s.doing(left[0]) == "gone"
    over_inputs = guard.is_loop and guard.kind == "for" and not tasks and _takes_inputs(s, guard)
    uneven = over_inputs or guard.origin == "input"
    if gone and (guard.leaves == "return" or ASKED_TO_STOP.search(guard.test)) and not uneven:
        return None
    cls = "uneven_inputs" if uneven else "rank_conditional_collective" if guard.origin == "rank" else "data_divergent_control_flow"  # fmt: skip
    guilty, others = (left, stayed) if len(left) <= len(stayed) else (stayed, left)
    # A job that was attached to has no black box, and what no black box says is not zero.
    told = iteration is None and all(s.histories.tokens.get(r) for r in (*left, *stayed))
    # Of a loop within an iteration their number says nothing.
    told = told and s.anchored_in(loop)
    counts = {r: s.histories.count(r) for r in (*left, *stayed)} if told else {}
    line = guard.place
    here: Place | None = line
    if uneven and (guilty == stayed or not gone):
        here = s.here(guilty[0]) if guilty == stayed else _where_it_left(s, loop, line, left[0])
    short, more = left[0], stayed[0]
    times = "" if iteration is None else f" in iteration {iteration + 1}, fewer times round than the others"
    if counts:
        times = f" after {counts[short]} iterations, while rank {more} is in number {counts[more]}"
    elif iteration is None and guilty == left:
        times = f", while rank {more} is still in it"
    how = "came to the end of" if guard is loop else f"left by `{shown(guard)}`"
    because = f"{how} the loop at {locations.short(loop.place)}{times}"
    if guilty == stayed:
        because = (
            f"still trains in the loop at {locations.short(loop.place)}, which the others have left{times}"
        )
    return made(
        s,
        Case(
            cls=cls, guilty=guilty, blocked=others, where=here or line, guard=guard, because=because,
            confidence=0.92 if counts and uneven else 0.85,
            evidence=(
                *(
                    Evidence(claim=f"rank {r} began {n} iterations", source=f"{s.cell.rank(r).source}/blackbox.bin")
                    for r, n in sorted(counts.items())[:8]
                ),
                s.stands(left[0]),
                s.stands(stayed[0]),
            ),
        ),
    )  # fmt: skip
