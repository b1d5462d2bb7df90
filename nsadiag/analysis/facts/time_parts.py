"""The parts of a step: computing, waiting for peers, input, saving, and the rest; each moment of the thread that trains counts once.

The same measure stands in the page, in matrices, in `diff`, in `top` and in `nsadiag.load(...).parts`.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple

from nsadiag.analysis.facts.spans import Span
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.evidence.table import Table

KINDS = (Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER, Kind.DATA, Kind.IO, Kind.COLLECTIVE, Kind.UNIT)
# Of spans that hold each other, the first of these is what the moment goes to.
PRECEDENCE = ("peers", "saving", "input", "compute")
OF_KIND = {
    int(Kind.FORWARD): "compute",
    int(Kind.BACKWARD): "compute",
    int(Kind.OPTIMIZER): "compute",
    int(Kind.DATA): "input",
    int(Kind.IO): "saving",
    int(Kind.COLLECTIVE): "peers",
}
UNIT_WAITS = "wait "  # begins the name of what FSDP waits for: parameters that its peers send


class StepParts(NamedTuple):
    """One completed step of a rank, and where its time went; the parts add up to it."""

    rank: Annotated[int, "the rank that made it"]
    step: Annotated[int, "its number"]
    step_s: Annotated[float, "its length"]
    # None of steps whose phases were not recorded.
    compute_s: Annotated[float | None, "in forward, backward and the optimizer, without what follows"]
    peers_s: Annotated[
        float | None,
        "waiting for peers: in calls of torch.distributed, in FSDP's waits for parameters, and in a backward that reduces gradients after its own last one",
    ]
    input_s: Annotated[float | None, "waiting for a batch of a DataLoader"]
    saving_s: Annotated[float | None, "reading or writing a checkpoint"]
    rest_s: Annotated[float | None, "in everything else"]


PART_COLUMNS = [*StepParts._fields]
PARTS = PART_COLUMNS[3:]


class Made(NamedTuple):
    """One completed step."""

    step: int
    begin_s: float
    end_s: float
    phases_known: bool = True


def steps_and_gradients(events: Table) -> tuple[list[Made], list[float], int | None]:
    """Completed steps, times of gradients in order, and the thread that made the steps; from the rank's events of these kinds."""
    steps = events[events.kind == Kind.STEP].sort_values("t_s")
    rows = [*zip(*(steps[name] for name in ("a", "t_s", "name", "thread")), strict=True)]
    made: list[Made] = []
    for (before, last_s, _, _), (step, end_s, left_out, _) in itertools.pairwise(rows):
        count = max(step - before, 1) if left_out else 1
        made.append(Made(step, end_s - (end_s - last_s) / count, end_s, not left_out))
    gradients = sorted(events["t_s"][events.kind == Kind.GRADIENT])
    return made, gradients, rows[-1][3] if rows else None


def parts_of(
    rank: int,
    made: Iterable[Made],
    gradients: Sequence[float],
    thread: int | None,
    *,
    spans: Iterable[Span],
    reduces: bool,
) -> Iterator[StepParts]:
    """The steps in order. `spans` are of KINDS; `gradients`: when each came, in order; `reduces`: with its peers, in backward."""
    spans = (span for span in spans if span.thread == thread)
    edges: list[tuple[float, int, int]] = []  # when, which part, begins or ends
    for begin_s, end_s, part in _pieces(spans, gradients, reduces=reduces):
        place = PRECEDENCE.index(part)
        edges += [(begin_s, place, 1), (end_s, place, -1)]
    edges.sort()
    active, next_edge, now_s = [0] * len(PRECEDENCE), 0, -math.inf
    for step in made:
        spent = [0.0] * len(PRECEDENCE)
        now_s = max(now_s, step.begin_s)
        while next_edge < len(edges) and edges[next_edge][0] <= step.end_s:
            at_s, place, change = edges[next_edge]
            _spend(spent, active, max(at_s, now_s) - now_s)
            active[place] += change
            now_s, next_edge = max(at_s, now_s), next_edge + 1
        _spend(spent, active, step.end_s - now_s)
        now_s = step.end_s
        length_s = step.end_s - step.begin_s
        if not step.phases_known:
            yield StepParts(rank, step.step, length_s, None, None, None, None, None)
            continue
        peers_s, saving_s, input_s, compute_s = spent
        rest_s = max(length_s - sum(spent), 0.0)
        yield StepParts(rank, step.step, length_s, compute_s, peers_s, input_s, saving_s, rest_s)


def _spend(spent: list[float], active: Sequence[int], seconds: float) -> None:
    """To the first part that is active."""
    place = next((place for place, count in enumerate(active) if count > 0), None)
    if place is not None and seconds > 0:
        spent[place] += seconds


def _pieces(
    spans: Iterable[Span], gradients: Sequence[float], *, reduces: bool
) -> Iterator[tuple[float, float, str]]:
    for span in spans:
        end_s = math.inf if span.end_s is None else span.end_s
        part = OF_KIND.get(span.kind)
        if span.kind == Kind.UNIT:
            part = "peers" if span.name.startswith(UNIT_WAITS) else None
        if part is None or end_s < span.begin_s:
            continue
        yield span.begin_s, end_s, part
        if reduces and span.kind == Kind.BACKWARD:
            last = bisect.bisect_right(gradients, end_s) - 1
            if last >= 0 and gradients[last] > span.begin_s:
                yield gradients[last], end_s, "peers"
