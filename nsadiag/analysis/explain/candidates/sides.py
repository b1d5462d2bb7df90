"""The side that left the common course, where two sides are equally large and the first divergence would blame the wrong one."""

from __future__ import annotations

import itertools

from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.relations.timeline import Divergence, TimelineEvent, Timelines
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.source.control import Condition

FEWEST = 5  # iterations of which one may say that something is usual
MOST = 0.8
LONGER = (
    2  # times the longest pause between two visits: what comes round at its own rhythm is due, and not rare
)


def other_side_strayed(context: Context, found: Divergence, guard: Condition, entered: bool) -> bool:
    """Whether those who are not `found.guilty` left the common course; `entered`: the guilty are in the branch."""
    if len(found.guilty) != len(found.others):
        return False
    if not found.novel and (strayed := _left_the_usual(context.timelines, found)):
        return strayed == found.others
    if entered:
        # An early exit, where the other went past it to what it waits in.
        return bool(guard.leaves) or _skipped_modules(context, found, guard)
    # With nothing before to compare with: the one in the branch.
    theirs_is_call = found.theirs is not None and found.theirs.kind == Kind.COLLECTIVE and found.theirs.place
    return bool(theirs_is_call) and not (found.novel or guard.leaves)


def _skipped_modules(context: Context, found: Divergence, guard: Condition) -> bool:
    """With nothing before to compare with: the one in backward, where the other is in the model's branch."""
    in_backward = found.theirs is not None and found.theirs.kind == Kind.BACKWARD
    return in_backward and not found.novel and context.in_forward(guard)


def _left_the_usual(timelines: Timelines, found: Divergence) -> tuple[int, ...]:
    """Ranks that took the way which had become rare on all of them; none where what was done before does not tell."""
    own = _is_usual(timelines, found, found.own, found.guilty[0])
    theirs = _is_usual(timelines, found, found.theirs, found.others[0])
    # Whoever has nothing to show went on, or is on its way to the same.
    own = not theirs if found.own is None and theirs is not None else own
    theirs = not own if found.theirs is None and own is not None else theirs
    if own is None or theirs is None or own == theirs:
        return ()
    return found.others if own else found.guilty


def _is_usual(timelines: Timelines, found: Divergence, event: TimelineEvent | None, rank: int) -> bool | None:
    """True where ranks came to that call in most iterations before, False where they have long ceased to, None in between."""
    if event is None or found.iteration < FEWEST:
        return None
    now = timelines.iteration(rank, found.iteration)
    # A helper's line may be called several times in an iteration.
    times = sum(t.key == event.key and t.t_ns <= event.t_ns for t in now)
    came = [
        [sum(t.key == event.key for t in timelines.iteration(r, n)) >= times for n in range(found.iteration)]
        for r in (*found.guilty, *found.others)
    ]
    if all(sum(each) >= MOST * len(each) for each in came):
        return True
    return False if all(_has_become_rare(each) for each in came) else None


def _has_become_rare(came: list[bool]) -> bool:
    visits = [-1, *(n for n, each in enumerate(came) if each)]
    pause = len(came) - 1 - visits[-1]
    longest = max((b - a for a, b in itertools.pairwise(visits)), default=0)
    # What was never done before is another question.
    return len(visits) > 1 and pause >= max(FEWEST, LONGER * longest)
