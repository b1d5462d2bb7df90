"""A backward that reaches no parameter on some ranks: their loss is a constant, and DDP never begins the reduction that the others wait in."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from nsadiag.analysis.explain.candidate import Candidate, Kind, Proximity
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import RankEvidence
from nsadiag.evidence.ring.blackbox import Kind as EventKind
from nsadiag.evidence.ring.blackbox import Phase
from nsadiag.source.patterns.gradient_cuts import constant_losses

FIX = "Keep the model in the loss of such a batch, as zero times its output (`output.sum() * 0`): backward then reduces zeros with the others."
HABIT = 2  # earlier backwards of the same line with gradients
Key = tuple[int, int]  # a step, and the place among its backwards


@dataclass(frozen=True, kw_only=True)
class Backward:
    """A backward of the main thread."""

    at: str  # file:line:function
    gradients: int  # that arrived in it, of those that are recorded
    is_over: bool


def detached_losses(context: Context) -> Iterator[Candidate]:
    """The first backward that was over without a gradient on some ranks, as no earlier one from that line, and had some on the others."""
    members = context.members()
    ranks = [context.cell.rank(rank) for rank in members]
    if not all(rank.ddp for rank in ranks) or any(map(_accumulates, ranks)):
        return
    made = {rank.rank: _backwards(rank) for rank in ranks}
    for key in sorted(set.intersection(*(set(each) for each in made.values()))):
        here = {rank: each[key] for rank, each in made.items()}
        detached = tuple(r for r, each in here.items() if each.is_over and not each.gradients)
        if detached:
            others = tuple(r for r, each in here.items() if each.gradients)
            habitual = all(_had_gradients(made[r], key) for r in detached)
            if habitual and len(detached) + len(others) == len(members) > len(detached):
                yield _candidate(context, key[0], here, detached, others)
            return


def _accumulates(rank: RankEvidence) -> bool:
    """Whether it ever asked DDP for no reduction: a constant loss would do no harm there."""
    return bool((rank.recording.events["kind"] == EventKind.GRAD_SYNC).any())


def _backwards(rank: RankEvidence) -> dict[Key, Backward]:
    events = rank.recording.events
    arrived = sorted(events[events["kind"] == EventKind.GRADIENT]["t_ns"].tolist())
    own = (events["kind"] == EventKind.BACKWARD) & (events["thread"] == rank.recording.pid)
    found: dict[Key, Backward] = {}
    met: Counter[int] = Counter()
    begun = None
    for event in rank.recording.decode(events[own]):
        if event.phase == Phase.BEGIN:
            begun = event
            key = event.step, met[event.step]
            met[event.step] += 1
            gradients = len(arrived) - bisect.bisect(arrived, event.t_ns)
            found[key] = Backward(at=event.site, gradients=gradients, is_over=False)
        elif begun is not None:
            gradients = bisect.bisect(arrived, event.t_ns) - bisect.bisect(arrived, begun.t_ns)
            found[key] = Backward(at=begun.site, gradients=gradients, is_over=True)
            begun = None
    return found


def _had_gradients(made: dict[Key, Backward], key: Key) -> bool:
    before = [each for other, each in made.items() if other < key and each.at == made[key].at]
    return len(before) >= HABIT and all(each.gradients for each in before)


def _candidate(
    context: Context, step: int, here: dict[int, Backward], detached: tuple[int, ...], others: tuple[int, ...]
) -> Candidate:
    one, other = detached[0], others[0]
    did, theirs = (
        f"reached {'a' if r == other else 'no'} parameter in its backward of step {step}"
        for r in (one, other)
    )
    constants = constant_losses(context.cell.code)
    where = constants[0] if len(constants) == 1 else None
    around = [g for g in context.program.around(where.file, where.line) if g.differs] if where else []
    condition = around[-1] if around else None
    return Candidate(
        kind=Kind.BRANCH,
        proximity=Proximity.CALLS,
        condition=condition,
        guilty=detached,
        blocked=others,
        where=where or locations.of_text(here[one].at),
        because=f"called backward in step {step} on a loss that no parameter of the model is behind: DDP reduced nothing there, and the others wait for that reduction",
        evidence=(context.recorded(one, did), context.recorded(other, theirs)),
        decisive=f"rank {one} {did}, and rank {other} did",
        fix=FIX,
    )
