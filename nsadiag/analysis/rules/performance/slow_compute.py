"""Every rank progresses, but far more slowly than in its own earlier steps, or through a huge autograd graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pandas as pd

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.facts.registrations import Pile
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.relations.trend import Slowing, slowing
from nsadiag.analysis.rules.drafts import at_line
from nsadiag.analysis.rules.performance.onset import onset_of
from nsadiag.analysis.rules.performance.python_loops import loop_in_backward, loop_in_input
from nsadiag.analysis.rules.reasons import hung
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.documents.training import Sample
from nsadiag.evidence.documents.watch import Look
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.source import loops

PARTS = ("input_s", "forward_s", "backward_s")
MEMORY_GROWTH, MIN_GROWN_MIB = 1.5, 64
MANY_NODES = 10_000  # a transformer of 12 layers has some 2,500
LONG_STEP_S = 5.0  # after such a silence people ask whether the job hangs, and the watch takes a snapshot


def _place(cell: CellEvidence, part: str | None = None, *, since_ns: int = 0) -> Place | None:
    """The line at which the ranks are sampled most often, waits for peers left out.

    `part` is the part of the step that has grown; samples of the other parts say nothing about it.
    """
    samples = [sample for rank in cell.ranks for sample in rank.samples if sample.t_mono_ns >= since_ns]
    at_work = [sample for sample in samples if not locations.waits_for_peers(sample)]
    of_part = [s for s in at_work if part and _is_of(part, s)]
    seen = locations.most_seen(of_part or at_work or samples)
    return seen or _looked_at(cell) or locations.of_black_box(cell.ranks[0])


def _looked_at(cell: CellEvidence) -> Place | None:
    """The line that most snapshots show, within the loop that most of them show, for a job without samples.

    A single snapshot may have caught what runs once before a loop that takes minutes.
    """
    looks = [capture for rank in cell.ranks for capture in reversed(rank.captures)]
    lines = [at for capture in looks if (at := locations.of_frames(capture.main_frames))]
    if not lines:
        return None
    heads = {at: loops.head(cell.code, at) or at for at in lines}
    (most, _), *_ = Counter(heads[at] for at in lines).most_common(1)
    return Counter(at for at in lines if heads[at] == most).most_common(1)[0][0]


def _is_of(part: str, sample: Sample) -> bool:
    if part == "input_s":
        return not locations.in_a_step(sample)
    return locations.in_backward(sample) == (part == "backward_s")


def _slowing_down(case: Case) -> Iterator[Draft]:
    """Steps that grow: accumulating hooks or graphs, or lengthening sequences."""
    slower = slowing(case.cell.ranks[0], case)
    if slower is None:
        return
    first, last = slower.first_s, slower.last_s
    of = "" if slower.measure == "step_s" else " of CPU time"
    part = max(PARTS, key=slower.grown_s)
    name = part.removesuffix("_s")
    doing = _doing(part, slower)
    source = f"{case.cell.ranks[0].source}/blackbox.bin"
    in_step, pile = slower.in_step, slower.pile
    why = (
        f"their inputs grow {slower.times_given:.1f} times, by a schedule or because nothing bounds them"
        if in_step
        else "something accumulates"
    )
    seen_at = _place(case.cell, part)
    if pile and not in_step:
        why = f"something accumulates: {pile.told}"
    yield Draft(
        strength=Strength.GUESS if in_step else Strength.STRONG,
        summary=f"Steps keep getting slower: {first * 1e3:.0f} ms{of} at first, {last * 1e3:.0f} ms at the end ({1 / last:.2g} a second), the growth mostly in {doing}; {why}.",
        guilty_ranks=tuple(r.rank for r in case.cell.ranks),
        where=Where(phase=name).at(pile.place if pile and not in_step else seen_at),
        evidence={
            **dict(_piled(pile, seen_at, case.cell.ranks[0].source)),
            f"{'fastest steps' if slower.at_best else 'median step'} of the first and the last fifth: {first * 1e3:.0f} and {last * 1e3:.0f} ms{of}; rank correlation with the step {slower.trend:.2f}": source,
            **dict(_memory(case, case.cell.ranks[0].rank, source)),
        },
        fix="If a schedule makes the inputs grow, this is intended; otherwise bound what grows (a memory, a history, padding)."
        if in_step
        else "Register it once, before the loop, and remove at the end of a step what only that step needs."
        if pile
        else "Look for what every step adds at the line shown: hooks registered again, graphs kept alive by a list of losses, a growing input.",
    )


def _jumped(case: Case) -> Iterator[Draft]:
    """Steps that became many times slower at once and stayed so: a full cache, a fallback, an outlier that is kept."""
    rank = case.cell.ranks[0]
    onset = onset_of(case.steps[case.steps["rank"] == rank.rank])
    if onset is None:
        return
    source = f"{rank.source}/blackbox.bin"
    part = max(PARTS, key=onset.grown_s)
    name = "work between steps" if part == "input_s" else part.removesuffix("_s")
    given = (
        f"; since then the inputs of a step are {onset.times_given:.3g} times as large"
        if onset.is_given_more
        else ""
    )
    since_ns = int(onset.before.end_s.iloc[-1] * 1e9) + case.cell.started_mono_ns
    at = _place(case.cell, part, since_ns=since_ns)
    yield Draft(
        # A planned switch, to longer inputs for example, is a jump too.
        strength=Strength.GUESS if onset.is_given_more else Strength.LIKELY,
        summary=f"Since step {onset.step} every step takes {onset.times:.0f} times as long as before: {_seconds(onset.first_s)} until then, {_seconds(onset.last_s)} since, most of it in {name}{at_line(at)}{given}.",
        guilty_ranks=tuple(r.rank for r in case.cell.ranks),
        where=Where(step=onset.step, phase=part.removesuffix("_s")).at(at),
        evidence={
            f"median of {len(onset.before)} steps before step {onset.step}: {_seconds(onset.first_s)}; of the {len(onset.since)} since: {_seconds(onset.last_s)}": source,
            f"of the median step, {name} has grown by {_seconds(onset.grown_s(part))}": source,
            **dict(_memory(case, rank.rank, source)),
        },
        fix="If the inputs are meant to be so much larger from here on, this is intended; otherwise look for a size that one large input has raised permanently (a maximum, padding, a buffer)."
        if onset.is_given_more
        else "Look for what changed at that step at the line shown: a full cache, a fallback, a debug mode, a limit that was reached.",
    )


def _piled(pile: Pile | None, seen_at: Place | None, source: str) -> Iterator[tuple[str, str]]:
    """The accumulating registrations, and the line that takes the time."""
    if pile:
        yield pile.told, f"{source}/piles.jsonl"
        if seen_at:
            yield f"most samples show the ranks at {locations.short(seen_at)}", f"{source}/samples.jsonl"


def _doing(part: str, slower: Slowing) -> str:
    """The name of the part; time before a forward goes to the loader, to saving, or to the loop itself."""
    if part != "input_s":
        return part.removesuffix("_s")
    if slower.grown_s("saving_s") > slower.grown_s("input_s") / 2:
        return "saving"
    return "input" if slower.grown_s("loader_s") > slower.grown_s("input_s") / 2 else "work between steps"


def _memory(case: Case, rank: int, source: str) -> Iterator[tuple[str, str]]:
    """Memory that grew with the steps: whatever accumulates is held by something."""
    events = case.events
    seen = events[
        (events["rank"] == rank) & (events.kind == Kind.MEMORY) & events.name.isin(("step 1", "step"))
    ]
    if len(seen) < 2:
        return
    for column, what in (("a", "allocated device memory"), ("b", "resident memory")):
        first, last = float(seen[column].iloc[0]) / 1024, float(seen[column].iloc[-1]) / 1024
        if last > MEMORY_GROWTH * first and last - first > MIN_GROWN_MIB:
            yield f"{what} grew from {first:,.0f} to {last:,.0f} MiB", source


def _graph_sizes(events: pd.DataFrame) -> tuple[int, bool]:
    graphs = events[events.kind == Kind.GRAPH]
    if graphs.empty:
        return 0, False
    largest = int(graphs.a.max())
    return largest, bool(graphs.loc[graphs.a == largest, "b"].any())


def _endless_graph(case: Case) -> Iterator[Draft]:
    """A Python loop over tokens that makes so many autograd nodes that one step looks like a hang."""
    rank = case.cell.ranks[0]
    events = case.events[case.events["rank"] == rank.rank]
    busy = _looks_at_steps(case.cell, events)
    nodes, capped = _graph_sizes(events)
    walking = bool(busy) and nodes == 0 and not (events.kind == Kind.BACKWARD).any() and _open_forward(events)
    # A watch that knows how long a step takes takes no snapshot; then the step times show it.
    step_s = _median_step_s(case, rank)
    if not (busy or step_s > LONG_STEP_S) or (nodes < MANY_NODES and not walking):
        return
    steps = int(rank.end.steps or 0)
    size = f"{nodes:,}{' or more' if capped else ''} autograd nodes"
    seconds = case.cell.watch.ended_s or 0.0
    bound = f"backward walks {size}" if nodes else "forward is still building its graph"
    yield Draft(
        strength=Strength.STRONG if nodes else Strength.LIKELY,
        summary=f"Not hung: every rank computes, {steps} steps in {seconds:.0f} s; {bound}, one small operation after another.",
        guilty_ranks=tuple(r.rank for r in case.cell.ranks),
        where=Where(step=steps, phase=_phase_now(case.cell, events)).at(_place(case.cell)),
        evidence={
            **(
                {f"while no event was recorded,  {busy[-1].reason}": "watch.json#looks"}
                if busy
                else {f"a step takes {step_s:.0f} s": f"{rank.source}/blackbox.bin"}
            ),
            (
                f"the graph of one step has {size}" if nodes else "forward has not ended yet"
            ): f"{rank.source}/blackbox.bin",
            **dict(_largest(rank)),
        },
        fix="Replace the Python loop over tokens by batched operations: time is the number of operations, not their size.",
    )


def _looks_at_steps(cell: CellEvidence, events: pd.DataFrame) -> list[Look]:
    """Snapshots of a busy job taken because a step was silent; one during start-up was due to imports."""
    # NaN where there is none, which no snapshot is later than.
    began_s = events.t_s[events.kind == Kind.FORWARD].min()
    looks = cell.watch.looks
    return [look for look in looks if look.judgement in ("busy", "progress") and look.t_s > began_s]


def _median_step_s(case: Case, rank: RankEvidence) -> float:
    steps = case.steps[case.steps["rank"] == rank.rank]
    return float(steps.step_s.median()) if len(steps) else 0.0


def _largest(rank: RankEvidence) -> Iterator[tuple[str, str]]:
    """The module that made most nodes, and the most frequent node type."""
    modules, types = (rank.graph.modules or {}, rank.graph.types or {}) if rank.graph else ({}, {})
    if modules and types:
        module, made = max(modules.items(), key=lambda item: item[1])
        kind, times = max(types.items(), key=lambda item: item[1])
        claim = f"{made:,} of them were made in {module or 'no module'}; {times:,} are {kind}"
        yield claim, f"{rank.source}/graph.json"


def _open_forward(events: pd.DataFrame) -> bool:
    forwards = events[events.kind == Kind.FORWARD]
    return len(forwards) > 0 and int(forwards.phase.iloc[-1]) == Phase.BEGIN


def _phase_now(cell: CellEvidence, events: pd.DataFrame) -> str | None:
    """The phase in which the job was stopped: the last forward or backward, if it was unfinished."""
    if cell.stopped is None:
        return None
    backwards = events[events.kind == Kind.BACKWARD]
    # Backward first: recomputation is a forward within it.
    if len(backwards) and int(backwards.phase.iloc[-1]) == Phase.BEGIN:
        return "backward"
    return "forward" if _open_forward(events) else None


def _loop_in_backward(case: Case) -> Iterator[Draft]:
    """A custom backward with a loop of small operations: slow from the first step, though the graph is small."""
    found = loop_in_backward(case)
    if found is None:
        return
    times = found.backward_s / max(found.forward_s, 1e-6)
    yield Draft(
        strength=Strength.LIKELY,
        summary=f"Every rank progresses, and a step takes {_seconds(found.step_s)}, nearly all of it in a loop in Python at {locations.short(found.place)}: backward takes {times:.0f} times as long as forward.",
        guilty_ranks=tuple(r.rank for r in case.cell.ranks),
        where=Where(phase="backward").at(found.place),
        evidence={
            f"{found.seen} of {found.samples} samples of the ranks are in that loop, at several of its lines": f"{case.cell.ranks[0].source}/samples.jsonl",
            f"median of the last steps: {_seconds(found.forward_s)} forward, {_seconds(found.backward_s)} backward": f"{case.cell.ranks[0].source}/blackbox.bin",
        },
        fix="Replace the loop in this backward by batched operations (a scan over whole tensors, a cumulative sum, a kernel): time is the number of operations, not their size.",
    )


def _loop_in_input(case: Case) -> Iterator[Draft]:
    """Nested Python loops that build the batches: slow from the first step, and worse the larger the batch."""
    found = loop_in_input(case)
    if found is None:
        return
    yield Draft(
        strength=Strength.LIKELY,
        summary=f"Every rank progresses, and a step takes {_seconds(found.step_s)}, nearly all of it between steps, in {found.depth} nested loops in Python at {locations.short(found.place)}: the model takes {_seconds(found.model_s)}.",
        guilty_ranks=tuple(r.rank for r in case.cell.ranks),
        where=Where(phase="input").at(found.place),
        evidence={
            f"{found.seen} of {found.samples} samples of the ranks are in those loops": f"{case.cell.ranks[0].source}/samples.jsonl",
            f"median of the last steps: {_seconds(found.input_s)} before the forward, {_seconds(found.model_s)} in forward and backward": f"{case.cell.ranks[0].source}/blackbox.bin",
        },
        fix="Compare by a key (a hash, a sort, a set) or by batched operations instead of all pairs, or do it once before training.",
    )


def _steady(rank: RankEvidence, case: Case) -> Declined:
    """The time of the first and the last steps, for a job that does not slow down."""
    steps = case.steps[case.steps["rank"] == rank.rank].sort_values("step")
    if steps.empty:
        return Declined(f"rank {rank.rank} completed no step that could be timed")
    fifth = max(len(steps) // 5, 1)
    first_s, last_s = (float(part.step_s.median()) for part in (steps[:fifth], steps[-fifth:]))
    claim = f"rank {rank.rank} took {_seconds(first_s)} a step at first and {_seconds(last_s)} at the end, of {len(steps)} steps"
    return Declined(claim, f"{rank.source}/blackbox.bin")


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value * 1e3:.0f} ms"


def slow_compute(case: Case) -> Iterator[Draft | Declined]:
    if not case.cell.ranks or case.cell.stopped == "hang":
        yield hung(case.cell) if case.cell.ranks else Declined("no rank was seen")
        return
    yield from _jumped(case)
    yield from _slowing_down(case)
    yield from _endless_graph(case)
    yield from _loop_in_backward(case)
    yield from _loop_in_input(case)
    yield _steady(case.cell.ranks[0], case)


RULE = Rule(
    name="slow_compute",
    means={"slow_compute": "All ranks progress, far more slowly than their own earlier steps predict."},
    family="performance",
    outcome="slow",
    detected="All ranks progress, and one of these holds. Steps keep growing: the last fifth takes 2.5 times as long as the first, with a trend (measured by the fastest steps of each quarter if outliers hide it; in wall time where something is known to accumulate, otherwise in CPU time and on every rank). `where` is then the line that keeps registering hooks, handlers or parameter groups, if there is one; where the inputs grow with the time, at 50 %. Or steps take eight times as long from one step on, permanently (at 75 %; at 50 % where the inputs grew as well). Or the job was silent but busy, after its first step, over a graph of 10,000 or more autograd nodes. Or most samples of every rank lie in a Python loop of a custom backward, at several of its lines, while backward takes ten times as long as forward and five times as long as the rest of the step (at 75 %). Or most samples of every rank lie in nested Python loops between steps, and these take ten times as long as the model (at 75 %)",
    fix="Look for what is added once a step at the line shown, or for a loop of small operations.",
    check=slow_compute,
    needs=("black_boxes",),
    explained_by=("straggler_rank",),
    confused_with=("straggler_rank", "missing_rank", "healthy"),
)
