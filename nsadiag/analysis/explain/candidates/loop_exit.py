"""Loops that some ranks have left while others still wait in them: their data ran out, or a condition ended them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsadiag.analysis.explain.candidate import Candidate, Kind, Proximity, Rejection, shown
from nsadiag.analysis.explain.candidates.lost_step import passed_over
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.explain.trips import is_head, made_fewer_trips
from nsadiag.analysis.facts import locations
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Kind as EventKind
from nsadiag.source.control import Condition
from nsadiag.source.model import CallPath

# An end that somebody outside asked for is the end of that rank, not a branch of the training.
ASKED_TO_STOP = re.compile(r"signal|sigterm|preempt|spot|interrupt|terminat|shutdown|evict", re.IGNORECASE)


def loop_exits(context: Context) -> Iterator[Candidate | Rejection]:
    """Some wait inside a loop that others have left after fewer rounds."""
    for stayed, left in context.pairs():
        if context.waits_for_peers(left[0]):
            yield from left_loop(context, stayed, left)


def left_loop(
    context: Context,
    stayed: tuple[int, ...],
    left: tuple[int, ...],
    paths: tuple[CallPath, CallPath] | None = None,
    iteration: int | None = None,
) -> Iterator[Candidate | Rejection]:
    """The innermost loop that explains it, at most one, and those rejected on the way to it.

    `paths` and `iteration`: where the two were when they diverged, if that is not where they are now.
    """
    inside, outside = paths or (context.path_of(stayed[0]), context.path_of(left[0]))
    # Without a path to those who stayed no loop is known.
    around = context.differing(inside, outside) if inside else []
    for loop in reversed([g for g in around if g.is_loop]):
        # A loop over the parts of a model: fewer times round means fewer modules.
        if context.in_forward(loop):
            yield Rejection(condition=loop, because="iterates over the modules of a model")
            continue
        if context.is_joined(loop, left[0]):
            yield Rejection(
                condition=loop,
                because=f"was left under Join, in which rank {left[0]} answers for its peers' calls",
            )
            continue
        if context.exited_within(loop, left[0]):
            yield Rejection(condition=loop, because=f"was not left: rank {left[0]} called exit inside it")
            return
        led = context.anchored_in(loop) if paths else _leads_out_of(context, loop, stayed[0], left[0])
        if not led:
            fewer = (
                "no training step is in it"
                if paths
                else f"rank {left[0]} did not leave it after fewer iterations"
            )
            yield Rejection(condition=loop, because=f"does not separate the ranks: {fewer}")
        elif ended_by := passed_over(context, loop, stayed[0], left[0]) or _ended_by(context, loop, left[0]):
            yield _ended(context, loop, ended_by, stayed, left, iteration)
            return
        else:
            yield from _held_uniform(context, loop)


def _held_uniform(context: Context, loop: Condition) -> Iterator[Rejection]:
    """The ways out of a loop none of which can differ between ranks."""
    yield uniform(loop)
    for each in context.program.exits_of_loop(loop):
        yield uniform(each, f"leaves the loop at :{loop.line}, but ")


def uniform(condition: Condition, but: str = "") -> Rejection:
    """A condition that is rejected because nothing in it differs between ranks."""
    return Rejection(condition=condition, because=f"{but}is held to be the same on all ranks")


def _leads_out_of(context: Context, loop: Condition, stayed: int, left: int) -> bool:
    """Whether all that is known agrees with the one having left this loop."""
    less = made_fewer_trips(context, loop, stayed, left, context.path_of(stayed))
    return less and not _waits_in_branch(context, loop, stayed, left)


def _waits_in_branch(context: Context, loop: Condition, stayed: int, left: int) -> bool:
    """Whether who left waits behind a condition on the rank, in an outer loop that both are in.

    Then whoever passed by that may be in the loop's next round, however many there are in one.
    """
    inside, outside = context.path_of(stayed), context.path_of(left)
    behind = [
        *context.differing(outside, inside),
        *context.early_exits(outside, inside),
    ]
    on_rank = any(g.provenance == "rank" and not g.is_loop for g in behind)
    around = [g for g in context.around(inside) if g.is_loop]
    return on_rank and any(context.is_in(outside, g) for g in around[: around.index(loop)])


def _is_over_inputs(context: Context, loop: Condition) -> bool:
    """Whether any rank asked for a batch in the loop, or ran a model: else it goes over metrics, parameters, or names."""
    events = (t for mine in context.timelines.events.values() for t in mine)
    places = {t.at: t.place for t in events if t.kind in (EventKind.DATA, EventKind.FORWARD)}.values()
    # Without any recording nothing speaks against it.
    return not places or any(loop.holds(p) for at in places if at for p in context.call_paths.to(at))


def _ended_by(context: Context, loop: Condition, left: int) -> Condition | None:
    """The condition that ended it: the loop's own, or that of an early exit."""
    exits = [g for g in context.program.exits_of_loop(loop) if g.differs]
    if at_end := next((g for g in exits if g.provenance == "input"), None):
        return at_end
    own = loop.kind == "for" or loop.test not in ("True", "1")
    if _saw_the_end(context, loop, left) or (not exits and loop.differs and own):
        return loop
    return exits[-1] if exits else None


def _saw_the_end(context: Context, loop: Condition, rank: int) -> bool:
    """Whether the last thing that the rank did in the loop was to ask for a batch, and it was not given one."""
    asked = used = -1
    gave = False
    for number, event in enumerate(context.timelines.events.get(rank, ())):
        if event.at == context.timelines.anchor:
            used = number
        elif event.kind == EventKind.DATA and event.place and is_head(context, loop, event.place):
            asked, gave = number, bool(event.gave)
    return asked > used >= 0 and not gave


def _ended(
    context: Context,
    loop: Condition,
    ended_by: Condition,
    stayed: tuple[int, ...],
    left: tuple[int, ...],
    iteration: int | None,
) -> Candidate | Rejection:
    # Whether the loop goes over inputs, and these had run out.
    at_end = ended_by is loop and loop.kind == "for" and _is_over_inputs(context, loop)
    gone = context.doing(left[0]) == "gone"
    uneven = at_end or ended_by.provenance == "input"
    if gone and (ended_by.leaves == "return" or ASKED_TO_STOP.search(ended_by.test)) and not uneven:
        return Rejection(
            condition=ended_by, because=f"ended rank {left[0]} regularly, or because a stop was requested"
        )
    guilty, others = (left, stayed) if len(left) <= len(stayed) else (stayed, left)
    counts = _iterations_begun(context, loop, (*left, *stayed)) if iteration is None else {}
    where = ended_by.place
    if uneven and guilty == stayed:
        where = context.place_of(guilty[0]) or where
    elif uneven and not gone:
        where = _line_after(context, loop, left[0]) or where
    at = locations.short(loop.place)
    return Candidate(
        kind=Kind.LOOP_END if at_end else Kind.LOOP_EXIT,
        proximity=Proximity.CALLS,
        # What counts the rounds of a loop that is no other's has a state of its own.
        depends_on="data" if ended_by.provenance == "uniform" else "",
        condition=ended_by,
        guilty=guilty,
        blocked=others,
        where=where,
        because=_because(loop, ended_by, stayed[0], left[0], iteration, counts, stays=guilty == stayed),
        decisive=f"rank {left[0]} left the loop at {at} after fewer iterations" if iteration is None else "",
        evidence=(
            *(context.recorded(r, f"began {count(n, 'iteration')}") for r, n in sorted(counts.items())[:8]),
            context.position(left[0]),
            context.position(stayed[0]),
        ),
    )


def _line_after(context: Context, loop: Condition, left: int) -> Place | None:
    """The line that it went on to, if in the loop's own function; while it waits in a helper, the loop says more of why."""
    here, scope = context.place_of(left), context.program.scope_of
    return here if here and scope(here.file, here.line) == scope(loop.file, loop.line) else None


def _iterations_begun(context: Context, loop: Condition, ranks: tuple[int, ...]) -> dict[int, int]:
    """By rank, where the training is in the loop: of a loop within an iteration their number says nothing."""
    # A job that was attached to has no recording, and what no recording says is not zero.
    known = context.anchored_in(loop) and all(context.timelines.events.get(r) for r in ranks)
    return {r: context.timelines.count(r) for r in ranks} if known else {}


def _because(
    loop: Condition,
    ended_by: Condition,
    stayed: int,
    left: int,
    iteration: int | None,
    counts: dict[int, int],
    *,
    stays: bool,
) -> str:
    """`stays`: the guilty are those who are still in the loop."""
    at, done, still = locations.short(loop.place), "", ""
    if iteration is not None:
        done = f" in iteration {iteration + 1}{'' if stays else ', earlier than the others'}"
    elif counts:
        done = f" after {count(counts[left], 'iteration')}"
        still = f"is in iteration {counts[stayed]}"
    elif not stays:
        still = "is still in it"
    if stays:
        return f"{still or 'is still'} in the loop at {at}, which the other ranks left{done}"
    how = f"left the loop at {at} by `{shown(ended_by)}`"
    if ended_by is loop:
        how = f"reached the end of the loop at {at}"
    elif ended_by.leaves not in ("break", "return"):
        how = f"passed over a batch at `{shown(ended_by)}` and reached the end of the loop at {at}"
    return f"{how}{done}{still and f', while rank {stayed} {still}'}"
