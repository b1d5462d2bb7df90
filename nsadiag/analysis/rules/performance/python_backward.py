"""A backward that the user wrote as a loop in Python, in which the ranks spend their time: small operations, one by one."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.evidence.documents.training import Sample
from nsadiag.evidence.records import Place
from nsadiag.evidence.user_code import is_user
from nsadiag.source import loops

CALLS_IT = "torch/autograd/function.py"
FEWEST_SAMPLES = 8  # of all ranks together
MOST_OF_THEM, OF_EACH_RANK = 0.6, 0.5
# A backward is two or three times its forward, and four with what it computes again.
TIMES_FORWARD = 10
MOST_OF_STEP = 0.6
# A loss is no part of the forward that is measured, and its backward may go round in chunks as it does: that is in proportion.
TIMES_THE_REST = 5
MIN_BACKWARD_S = 0.1


@dataclass(frozen=True, kw_only=True)
class LoopInBackward:
    """A loop within a backward, by samples and steps."""

    place: Place  # the line of the loop that is seen most
    seen: int
    samples: int
    step_s: float
    forward_s: float
    backward_s: float


def loop_in_backward(case: Case) -> LoopInBackward | None:
    """By samples of all ranks, and by a backward out of all proportion to its forward; None where either does not say so."""
    samples = [(rank.rank, sample) for rank in case.cell.ranks for sample in rank.samples]
    found = [(rank, at) for rank, sample in samples if (at := _own_backward(sample)) is not None]
    if len(samples) < FEWEST_SAMPLES or len(found) < MOST_OF_THEM * len(samples):
        return None
    heads = {at: loops.head(case.cell.code, at) for _, at in set(found)}
    nest, _ = Counter(heads[at] for _, at in found).most_common(1)[0]
    inside = [(rank, at) for rank, at in found if nest and heads[at] == nest]
    of_rank = Counter(rank for rank, _ in inside)
    each = all(of_rank[rank.rank] >= OF_EACH_RANK * len(rank.samples) for rank in case.cell.ranks)
    # One line may be one large operation.
    if len({at.line for _, at in inside}) < 2 or len(inside) < MOST_OF_THEM * len(samples) or not each:
        return None
    steps = case.steps
    backwards = steps[steps.backward_s > 0]
    step_s, forward_s, backward_s = (float(steps[c].sum()) for c in ("step_s", "forward_s", "backward_s"))
    if backward_s < TIMES_FORWARD * forward_s or backward_s < MOST_OF_STEP * step_s:
        return None
    if not forward_s or backward_s < MIN_BACKWARD_S * len(backwards):
        return None
    # The last fifth: what was frozen first was not in the first steps' backward.
    late = steps.sort_values("step").iloc[-max(len(steps) // 5, 1) :]
    step_s, forward_s, backward_s = (float(late[c].median()) for c in ("step_s", "forward_s", "backward_s"))
    if backward_s < TIMES_THE_REST * (step_s - backward_s):
        return None
    return LoopInBackward(
        place=Counter(at for _, at in inside).most_common(1)[0][0],
        seen=len(inside),
        samples=len(samples),
        step_s=step_s,
        forward_s=forward_s,
        backward_s=backward_s,
    )


def _own_backward(sample: Sample) -> Place | None:
    """The user's line in an autograd Function's backward, unless a module or another backward runs within it."""
    for number, (inner, outer) in enumerate(itertools.pairwise(sample.frames)):
        file, line, name = inner
        if is_user(file) and outer.file.endswith(CALLS_IT) and name.rpartition(".")[2] == "backward":
            deeper = replace(sample, frames=sample.frames[:number])
            large = locations.in_a_step(deeper) or locations.waits_for_peers(sample)
            return None if large else locations.place(file, line, name)
    return None
