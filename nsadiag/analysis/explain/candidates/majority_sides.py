"""Two equal sides that diverged at a condition: cases in which history alone would blame the wrong one."""

from __future__ import annotations

from nsadiag.analysis.explain.candidates.usual_branch import unusual_side
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.relations.timeline import Divergence
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.source.control import Condition
from nsadiag.source.patterns.empty_shares import merges_what_it_asks_for


def other_side_strayed(context: Context, found: Divergence, guard: Condition, entered: bool) -> bool:
    """Whether those who are not `found.guilty` left the path, by what all did before or by the source; `entered`: the guilty are in the branch."""
    if len(found.guilty) != len(found.others):
        return False
    strayed = () if found.novel or _merges(context, found, guard) else unusual_side(context.timelines, found)
    if strayed:
        return strayed == found.others
    return (
        _entered_alone(context, found, guard, entered)
        or _turned_back(guard, entered)
        or _passed_by_modules(context, found, guard, entered)
        or _skipped_its_share(context, found, guard, entered)
    )


def _merges(context: Context, found: Divergence, guard: Condition) -> bool:
    """Whether either did a call to which the other had nothing to give: how often that was so says nothing of who strayed."""
    calls = (t.place for t in (found.own, found.theirs) if t is not None and t.kind == Kind.COLLECTIVE)
    return any(
        merges_what_it_asks_for(context.program, guard, context.call_paths.to(at)) for at in calls if at
    )


def _entered_alone(context: Context, found: Divergence, guard: Condition, entered: bool) -> bool:
    """With nothing before to compare with: the one in the branch, if that is not the training itself.

    Nor where the branch merges what the condition counts: then it is the other that has nothing, and skips it.
    """
    if entered or found.novel or guard.leaves:
        return False
    theirs = found.theirs
    if theirs is None or theirs.kind != Kind.COLLECTIVE or theirs.place is None:
        return False
    return not merges_what_it_asks_for(context.program, guard, context.call_paths.to(theirs.place))


def _skipped_its_share(context: Context, found: Divergence, guard: Condition, entered: bool) -> bool:
    """Both are where neither had been before: the one that has nothing of what the other merges skipped that.

    The call is new then because the condition is, and not because its rank strayed.
    """
    own = found.own
    if not entered or guard.leaves:
        return False
    if own is None or own.kind != Kind.COLLECTIVE or own.place is None:
        return False
    both = (found.guilty[0], found.others[0])
    if not all(context.timelines.went_a_new_way(rank, found.iteration, but=own.at) for rank in both):
        return False
    return merges_what_it_asks_for(context.program, guard, context.call_paths.to(own.place))


def _turned_back(guard: Condition, entered: bool) -> bool:
    """The one that took an early exit, where the other went past it to what it waits in."""
    return entered and bool(guard.leaves)


def _passed_by_modules(context: Context, found: Divergence, guard: Condition, entered: bool) -> bool:
    """With nothing before to compare with: the one in backward, where the other is in the model's branch."""
    if not entered or found.novel or found.theirs is None:
        return False
    return found.theirs.kind == Kind.BACKWARD and context.in_forward(guard)
