"""Ranks that have left a loop in which others still wait: the data ran out, or something made them leave."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nsadiag.analysis.explain.candidates.loop_entry import counted_at, was_in
from nsadiag.analysis.explain.candidates.nested_loops import left_between_rounds
from nsadiag.analysis.explain.context import Context, Explanation
from nsadiag.analysis.explain.result import Cause, made, shown
from nsadiag.analysis.facts import locations
from nsadiag.analysis.relations.call_paths import apart, held_by, is_in, passed_by, stands_behind
from nsadiag.evidence.records import Evidence, Place, Strength
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.source.control import Condition
from nsadiag.source.iterables import fillings, runs_its_items
from nsadiag.source.model import CallPath

# An end that somebody outside asked for is the end of that rank, not a branch of the training.
CLASSES = {"rank": "rank_conditional_collective"}
ASKED_TO_STOP = re.compile(r"signal|sigterm|preempt|spot|interrupt|terminat|shutdown|evict", re.IGNORECASE)


def left_loop(
    context: Context,
    *,
    stayed: tuple[int, ...],
    left: tuple[int, ...],
    call_paths: tuple[CallPath, CallPath] | None = None,
    iteration: int | None = None,
) -> Explanation | None:
    """`call_paths` and `iteration`: where the two were when they parted, if that is not where they are now."""
    inside, outside = call_paths or (context.now(stayed[0]), context.now(left[0]))
    if not inside:
        return None
    around = apart(context.program, inside, outside) if outside else held_by(context.program, inside)
    loops = [g for g in around if g.is_loop]
    way = _WayOut(context=context, stayed=stayed[0], left=left[0], inside=inside, outside=outside, iteration=iteration, now=call_paths is None)  # fmt: skip
    for number, loop in reversed([*enumerate(loops)]):
        guard = _why(context, loop, left[0]) if way.leads_out_of(loop, loops[:number]) else None
        if guard is None:
            continue
        tasks = guard is loop and runs_its_items(context.program, loop, inside)
        # Which of them are there on which ranks is decided where they are put in.
        apart_by_rank = guard is loop and any(f.guard for f in fillings(context.program, guard))
        if not apart_by_rank or not (tasks or (call_paths is None and not _takes_inputs(context, loop))):
            return _made(context, loop, guard, stayed, left, iteration, tasks=tasks)
    return None


@dataclass(frozen=True, kw_only=True)
class _WayOut:
    """One rank inside loops, and one that may have left them."""

    context: Context
    stayed: int
    left: int
    inside: CallPath
    outside: CallPath
    iteration: int | None  # in which they diverged; None: it is not known
    now: bool  # the paths are where they are at the last look

    def leads_out_of(self, loop: Condition, outer: list[Condition]) -> bool:
        """Whether all that is known agrees with the one having left this loop, and none of the outer ones first."""
        s = self.context
        # A loop over the parts of a model: fewer times round means fewer modules.
        if s.in_forward(loop):
            return False
        if self.now and not went_round_less(s, loop, self.stayed, self.left, self.inside):
            return False
        if self.outside and _stands_in_a_branch(s, loop, self.inside, self.outside):
            return False
        return self._left_in_training(loop, outer) if s.anchored_in(loop) else self._was_in(loop)

    def _left_in_training(self, loop: Condition, outer: list[Condition]) -> bool:
        s = self.context
        over = s.timelines.count(self.left) - 1 if self.iteration is None else self.iteration
        if _came_again(s, loop, self.stayed, self.left, over):
            return False
        together = outer[-1] if outer and self.now else None
        return together is None or not left_between_rounds(s, together, stayed=self.stayed, left=self.left)

    def _was_in(self, loop: Condition) -> bool:
        """A rank that never was in the loop has not left it."""
        return self.iteration is None or was_in(self.context, loop, self.left, self.iteration)


def went_round_less(context: Context, loop: Condition, stayed: int, left: int, inside: CallPath) -> bool:
    """By what the two did in the loop and nowhere else; by the iterations that they began, if that is where they train."""
    timelines = context.timelines
    if not timelines.events.get(stayed) or not timelines.events.get(left):
        return stands_behind(context.program, context.now(left), context.now(stayed))
    if context.anchored_in(loop):
        return timelines.count(stayed) > timelines.count(left)
    at = counted_at(context, loop, inside, stayed)
    if at is None:
        return False
    if any(context.anchored_in(g) for g in held_by(context.program, inside) if g.is_loop):
        # It begins anew in each iteration, in a helper maybe: what was missed in earlier ones did not end it now.
        # Whoever left it may have come to the next forward since.
        ahead = timelines.count(left) - timelines.count(stayed)
        rounds = timelines.was_at_lately(left, at, ahead) if ahead in (0, 1) else 0
        return timelines.was_at_lately(stayed, at) > rounds > 0
    # Who never was in it has not left it.
    return timelines.was_at(stayed, at) > timelines.was_at(left, at) > 0


def _stands_in_a_branch(context: Context, loop: Condition, inside: CallPath, outside: CallPath) -> bool:
    """Whether who left the loop waits behind a condition on the rank, in an outer loop that both are in.

    Then whoever passed by that may be in the loop's next round, however many there are in one.
    """
    behind = [*apart(context.program, outside, inside), *passed_by(context.program, outside, inside)]
    if not any(g.provenance == "rank" and not g.is_loop for g in behind):
        return False
    loops = [g for g in held_by(context.program, inside) if g.is_loop]
    outer = loops[: next((n for n, g in enumerate(loops) if g == loop), 0)]
    return any(is_in(context.program, outside, g) for g in outer)


def _came_again(context: Context, loop: Condition, stayed: int, left: int, over: int) -> bool:
    """Whether the one that is in the loop had left it as well, after the same iteration: it is in the next epoch's."""
    then, before = (context.timelines.iteration(stayed, number) for number in (over, over - 1))
    asked, theirs = (
        sum(t.kind == Kind.DATA and t.place is not None and _is_head(context, loop, t.place) for t in events)
        for events in (then, context.timelines.iteration(left, over))
    )
    if asked > theirs > 0:
        return True
    usual = {t.at for t in before}
    return bool(before) and any(
        _is_behind(context, loop, t.place) for t in then if t.place and t.at not in usual
    )


def _is_behind(context: Context, loop: Condition, at: Place) -> bool:
    """Whether the loop's own function leads to the line from outside the loop, and nothing else does."""
    if not context.call_paths.is_sure(at):
        return False
    scope = context.program.scope_of(loop.file, loop.line)
    own = [p for p in context.call_paths.to(at) if context.program.scope_of(p.file, p.line) == scope]
    return bool(own) and not any(map(loop.holds, own))


def _why(context: Context, loop: Condition, left: int) -> Condition | None:
    """The condition that ended it: the loop's own, or that of an early exit."""
    exits = [g for g in context.program.exits_of_loop(loop) if g.differs]
    if any(g.provenance == "input" for g in exits):
        return next(g for g in exits if g.provenance == "input")
    exhausted = _saw_the_end(context, loop, left)
    own = loop.kind == "while" and loop.test not in ("True", "1")
    if exhausted or (not exits and (loop.differs and (loop.kind == "for" or own))):
        return loop
    if exits:
        return exits[-1]
    return None


def _saw_the_end(context: Context, loop: Condition, rank: int) -> bool:
    """Whether the last thing that the rank did in the loop was to ask for a batch, and it was not given one."""
    asked = used = -1
    gave = False
    for number, event in enumerate(context.timelines.events.get(rank, ())):
        at = event.place
        if at is None:
            continue
        if event.kind == Kind.DATA and _is_head(context, loop, at):
            asked, gave = number, event.gave
        elif event.at == context.timelines.anchor:
            used = number
    return asked > used >= 0 and not gave


def _is_head(context: Context, loop: Condition, at: Place) -> bool:
    """The loop's own line, or a helper's that iterates for it."""
    if (at.file, at.line) == (loop.file, loop.line):
        return True
    return any(p.file == loop.file and p.line == loop.line for p in context.call_paths.to(at))


def _takes_inputs(context: Context, loop: Condition) -> bool:
    """Whether any rank asked for a batch in the loop, or ran a model: else it goes over metrics, parameters, names."""
    events = (
        t for mine in context.timelines.events.values() for t in mine if t.kind in (Kind.DATA, Kind.FORWARD)
    )
    lines = {t.at: t.place for t in events}
    # Without any black box nothing speaks against it.
    return not lines or any(
        loop.holds(p) for at in lines.values() if at is not None for p in context.call_paths.to(at)
    )


def _where_it_left(context: Context, loop: Condition, line: Place, left: int) -> Place | None:
    """The line that it went on to, in the loop's own function; while it waits in a helper, the loop says more of why."""
    here = context.here(left)
    own = context.program.scope_of(loop.file, loop.line)
    return here if here and context.program.scope_of(here.file, here.line) == own else line


def _made(
    context: Context,
    loop: Condition,
    guard: Condition,
    stayed: tuple[int, ...],
    left: tuple[int, ...],
    iteration: int | None,
    *,
    tasks: bool,
) -> Explanation | None:
    """`tasks`: what the loop hands out is run, and no batch."""
    gone = context.doing(left[0]) == "gone"
    over_inputs = guard.is_loop and guard.kind == "for" and not tasks and _takes_inputs(context, guard)
    uneven = over_inputs or guard.provenance == "input"
    if gone and (guard.leaves == "return" or ASKED_TO_STOP.search(guard.test)) and not uneven:
        return None
    guilty, others = (left, stayed) if len(left) <= len(stayed) else (stayed, left)
    counts = _iterations_begun(context, loop, (*left, *stayed)) if iteration is None else {}
    where: Place | None = guard.place
    if uneven and guilty == stayed:
        where = context.here(guilty[0])
    elif uneven and not gone:
        where = _where_it_left(context, loop, guard.place, left[0])
    return made(
        context,
        Cause(
            cls="uneven_inputs" if uneven else CLASSES.get(guard.provenance, "data_divergent_control_flow"),
            guilty=guilty, blocked=others, where=where or guard.place, guard=guard,
            because=_because(loop, guard, stayed[0], left[0], iteration, counts, stays=guilty == stayed),
            strength=Strength.STRONG,
            evidence=(
                *(
                    Evidence(claim=f"rank {r} began {n} iterations", source=f"{context.cell.rank(r).source}/blackbox.bin")
                    for r, n in sorted(counts.items())[:8]
                ),
                context.stands(left[0]),
                context.stands(stayed[0]),
            ),
        ),
    )  # fmt: skip


def _iterations_begun(context: Context, loop: Condition, ranks: tuple[int, ...]) -> dict[int, int]:
    """By rank, where the training is in the loop: of a loop within an iteration their number says nothing."""
    # A job that was attached to has no black box, and what no black box says is not zero.
    known = context.anchored_in(loop) and all(context.timelines.events.get(r) for r in ranks)
    return {r: context.timelines.count(r) for r in ranks} if known else {}


def _because(
    loop: Condition,
    guard: Condition,
    stayed: int,
    left: int,
    iteration: int | None,
    counts: dict[int, int],
    *,
    stays: bool,
) -> str:
    """`stays`: the guilty are those who are still in the loop."""
    at, times = locations.short(loop.place), ""
    if iteration is not None:
        times = f" in iteration {iteration + 1}, fewer times round than the others"
    elif counts:
        times = f" after {counts[left]} iterations, while rank {stayed} is in number {counts[stayed]}"
    elif not stays:
        times = f", while rank {stayed} is still in it"
    if stays:
        return f"still trains in the loop at {at}, which the others have left{times}"
    how = "came to the end of" if guard is loop else f"left by `{shown(guard)}`"
    return f"{how} the loop at {at}{times}"
