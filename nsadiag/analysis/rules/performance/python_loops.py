"""Python loops that take most of a step: in a custom backward, or in the code that builds the batches."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.evidence.documents.training import Sample
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.evidence.table import Table
from nsadiag.evidence.user_code import is_user
from nsadiag.source import loops

CALLS_IT = "torch/autograd/function.py"
FEWEST_SAMPLES = 8  # of all ranks together
OF_ALL_RANKS, OF_EACH_RANK = 0.6, 0.5  # shares of the samples that have to be in the loop
# A backward takes two or three times its forward, four with recomputation.
TIMES_FORWARD = 10
MOST_OF_STEP = 0.6
# The loss is not part of the measured forward, and its backward may loop over chunks as well; that is in proportion.
TIMES_THE_REST = 5
TIMES_THE_MODEL = 10  # of forward and backward together
LEAST_S = 0.1  # of such a backward, or of such an input, in each step
NESTED = 2  # loops around one line, in one function


@dataclass(frozen=True, kw_only=True)
class SlowLoop:
    """A Python loop, with the samples and step times that show it."""

    place: Place  # the line of the loop seen most often
    seen: int
    samples: int
    step_s: float
    forward_s: float = 0.0
    backward_s: float = 0.0
    input_s: float = 0.0
    model_s: float = 0.0  # forward and backward
    depth: int = 1


def loop_in_backward(case: Case) -> SlowLoop | None:
    """The loop that most samples of all ranks show, if backward is also far longer than forward; else None."""
    found = _sampled(case, _own_backward)
    heads = {at: loops.head(case.cell.code, at) for _, at in set(found)}
    if not found or not _are_most(case, found):
        return None
    nest, _ = Counter(heads[at] for _, at in found).most_common(1)[0]
    inside = [(rank, at) for rank, at in found if nest and heads[at] == nest]
    # A single line may be one large operation.
    if len({at.line for _, at in inside}) < 2 or not _are_most(case, inside):
        return None
    steps, parts = _in_parts(case.steps), ["step_s", "forward_s", "backward_s"]
    step_s, forward_s, backward_s = (steps[part].sum() for part in parts)
    least_s = LEAST_S * len(steps[steps.backward_s > 0])
    if not forward_s or backward_s < max(TIMES_FORWARD * forward_s, MOST_OF_STEP * step_s, least_s):
        return None
    newest = _newest(steps, 1)
    step_s, forward_s, backward_s = (newest[part].median() for part in parts)
    if backward_s < TIMES_THE_REST * (step_s - backward_s):
        return None
    return SlowLoop(
        place=_most_seen(inside),
        seen=len(inside),
        samples=_count(case),
        step_s=float(step_s),
        forward_s=float(forward_s),
        backward_s=float(backward_s),
    )


def loop_in_input(case: Case) -> SlowLoop | None:
    """The nested loops that most samples of all ranks show, if input also takes far longer than the model; else None."""
    steps = _in_parts(case.steps)
    if len(steps) < 2:
        return None
    late = _newest(steps, 2)
    input_s, model_s = float(late.input_s.median()), float((late.forward_s + late.backward_s).median())
    if input_s < max(LEAST_S, TIMES_THE_MODEL * model_s):
        return None
    trains = _training_functions(case)
    found = _sampled(case, lambda sample: _between_steps(sample, trains))
    depths = {at: loops.depth(case.cell.code, at) for _, at in set(found)}
    nested = [(rank, at) for rank, at in found if depths[at] >= NESTED]
    if not _are_most(case, nested):
        return None
    place = _most_seen(nested)
    return SlowLoop(
        place=place,
        depth=depths[place],
        seen=len(nested),
        samples=_count(case),
        step_s=float(late.step_s.median()),
        input_s=input_s,
        model_s=model_s,
    )


def _in_parts(steps: Table) -> Table:
    """Those whose phases were recorded."""
    return steps[steps.forward_s.notna()]


def _newest(steps: Table, least: int) -> Table:
    """The last fifth: parameters frozen at first were not in the first backwards."""
    return steps.sort_values("step")[-max(len(steps) // 5, least) :]


def _most_seen(found: list[tuple[int, Place]]) -> Place:
    return Counter(at for _, at in found).most_common(1)[0][0]


def _sampled(case: Case, line_of: Callable[[Sample], Place | None]) -> list[tuple[int, Place]]:
    """Rank and line of the samples that have one."""
    samples = ((rank.rank, sample) for rank in case.cell.ranks for sample in rank.samples)
    return [(rank, at) for rank, sample in samples if (at := line_of(sample)) is not None]


def _count(case: Case) -> int:
    return sum(len(rank.samples) for rank in case.cell.ranks)


def _are_most(case: Case, found: list[tuple[int, Place]]) -> bool:
    """Whether these are most samples of all ranks together, and half of each rank's."""
    by_rank = Counter(rank for rank, _ in found)
    each = all(by_rank[rank.rank] >= OF_EACH_RANK * len(rank.samples) for rank in case.cell.ranks)
    return _count(case) >= FEWEST_SAMPLES and len(found) >= OF_ALL_RANKS * _count(case) and each


def _own_backward(sample: Sample) -> Place | None:
    """The user's line in an autograd Function's backward, unless a module or another backward runs within it."""
    for number, (inner, outer) in enumerate(itertools.pairwise(sample.frames)):
        file, line, name = inner
        if is_user(file) and outer.file.endswith(CALLS_IT) and name.rpartition(".")[2] == "backward":
            deeper = replace(sample, frames=sample.frames[:number])
            large = locations.in_a_step(deeper) or locations.waits_for_peers(sample)
            return None if large else locations.place(file, line, name)
    return None


def _training_functions(case: Case) -> set[tuple[str, str]]:
    """(file, function) of the model's callers: their loops are the training loop."""
    places = (locations.of_text(site) for site in set(case.begun(Kind.FORWARD).site))
    return {(at.file, at.function) for at in places if at is not None and at.function}


def _between_steps(sample: Sample, trains: set[tuple[str, str]]) -> Place | None:
    """The innermost user line outside the training functions; None within a step."""
    if locations.in_a_step(sample):
        return None
    inner = next((frame for frame in sample.frames if is_user(frame.file)), None)
    if inner is None or (inner.file, inner.function) in trains:
        return None
    return locations.place(inner.file, inner.line, inner.function)
