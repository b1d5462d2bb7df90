"""Batches that are made by nested loops in Python, in which the ranks spend their time: work that grows with the square."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.evidence.documents.training import Sample
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.user_code import is_user
from nsadiag.source import loops

FEWEST_SAMPLES = 8  # of all ranks together
MOST_OF_THEM, OF_EACH_RANK = 0.6, 0.5
TIMES_THE_MODEL = 10  # of forward and backward together
MIN_INPUT_S = 0.1
NESTED = 2  # loops around one line, in one function


@dataclass(frozen=True, kw_only=True)
class LoopInInput:
    """Nested loops between two steps, by samples and steps."""

    place: Place  # the line of the innermost loop that is seen most
    depth: int
    seen: int
    samples: int
    step_s: float
    input_s: float
    model_s: float  # forward and backward


def loop_in_input(case: Case) -> LoopInInput | None:
    """By samples of all ranks, and by a wait for batches out of all proportion to the model; None where either does not say so."""
    steps = case.steps
    if len(steps) < 2:
        return None
    late = steps.sort_values("step").iloc[-max(len(steps) // 5, 2) :]
    step_s, input_s = float(late.step_s.median()), float(late.input_s.median())
    model_s = float((late.forward_s + late.backward_s).median())
    if input_s < max(MIN_INPUT_S, TIMES_THE_MODEL * model_s):
        return None
    samples = [(rank.rank, sample) for rank in case.cell.ranks for sample in rank.samples]
    trains = _training_functions(case)
    found = [(rank, at) for rank, sample in samples if (at := _between_steps(sample, trains)) is not None]
    depths = {at: loops.depth(case.cell.code, at) for _, at in set(found)}
    nested = [(rank, at) for rank, at in found if depths[at] >= NESTED]
    of_rank = Counter(rank for rank, _ in nested)
    each = all(of_rank[rank.rank] >= OF_EACH_RANK * len(rank.samples) for rank in case.cell.ranks)
    if len(samples) < FEWEST_SAMPLES or len(nested) < MOST_OF_THEM * len(samples) or not each:
        return None
    place = Counter(at for _, at in nested).most_common(1)[0][0]
    return LoopInInput(
        place=place,
        depth=depths[place],
        seen=len(nested),
        samples=len(samples),
        step_s=step_s,
        input_s=input_s,
        model_s=model_s,
    )


def _training_functions(case: Case) -> set[tuple[str, str]]:
    """(file, function) that call the model: the loops in them are the job's own."""
    events = case.events
    begun = events[(events.kind == Kind.FORWARD) & (events.phase == Phase.BEGIN)]
    places = (locations.of_text(site) for site in set(begun.site))
    return {(at.file, at.function) for at in places if at is not None and at.function}


def _between_steps(sample: Sample, trains: set[tuple[str, str]]) -> Place | None:
    """The innermost user line, in a function that does not train itself; None within a step."""
    if locations.in_a_step(sample):
        return None
    inner = next((frame for frame in sample.frames if is_user(frame.file)), None)
    if inner is None or (inner.file, inner.function) in trains:
        return None
    return locations.place(inner.file, inner.line, inner.function)
