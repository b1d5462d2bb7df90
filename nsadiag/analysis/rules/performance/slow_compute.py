"""Every rank progresses, but far more slowly than in its own earlier steps, or through a huge autograd graph."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

from nsadiag.analysis.case import Case
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CellEvidence, Declined, RankEvidence
from nsadiag.analysis.relations.trend import slowing
from nsadiag.analysis.rules.drafts import at_line
from nsadiag.analysis.rules.performance.lags import PARTS, doing_in
from nsadiag.analysis.rules.performance.onset import onset_of
from nsadiag.analysis.rules.performance.python_loops import loop_in_backward, loop_in_input
from nsadiag.analysis.rules.reasons import hung
from nsadiag.analysis.rules.rule import Claims, Draft, Rule
from nsadiag.evidence.documents.training import Sample
from nsadiag.evidence.documents.watch import Look
from nsadiag.evidence.phrases import count, seconds
from nsadiag.evidence.records import Place, Strength, Where
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.table import Table
from nsadiag.source import loops

MANY_NODES = 10_000  # a transformer of 12 layers has some 2,500
LONG_STEP_S = 5.0  # after such a silence people ask whether the job hangs, and the watch takes a snapshot
INTENDED = "If a schedule makes the inputs grow, this is intended; otherwise bound what grows (a memory, a history, padding)."
REGISTERED = "Register it once, before the loop, and remove at the end of a step what only that step needs."
ADDED = "Look for what every step adds at the line shown: hooks registered again, graphs kept alive by a list of losses, a growing input."
LARGER = "If the inputs are meant to be so much larger from here on, this is intended; otherwise look for a size that one large input has raised permanently (a maximum, padding, a buffer)."
CHANGED = "Look for what changed at that step at the line shown: a full cache, a fallback, a debug mode, a limit that was reached."


def slow_compute(case: Case) -> Iterator[Draft | Declined]:
    if not case.cell.ranks:
        return
    if case.cell.stopped == "hang":
        yield hung(case.cell)
        return
    everyone = tuple(rank.rank for rank in case.cell.ranks)
    for check in (_jumped, _slowing_down, _endless_graph, _loop_in_backward, _loop_in_input):
        if draft := check(case):
            yield dataclasses.replace(draft, guilty_ranks=everyone)
    yield _steady(case.cell.ranks[0], case)


def _slowing_down(case: Case) -> Draft | None:
    """Steps that grow: accumulating hooks or graphs, or lengthening sequences."""
    rank = case.cell.ranks[0]
    slower = slowing(rank, case)
    if slower is None:
        return None
    first, last = seconds(slower.first_s), seconds(slower.last_s)
    of = "" if slower.measure == "step_s" else " of CPU time"
    part = max(PARTS, key=slower.grown_s)
    here = _place(case.cell, part)
    evidence, pile = {}, None if slower.in_step else slower.pile
    why, fix = "something accumulates", ADDED
    if slower.in_step:
        why, fix = (
            f"their inputs grow {slower.times_given:.1f} times, by a schedule or because nothing bounds them",
            INTENDED,
        )
    elif pile:
        why, fix = f"{why}: {pile.told}", REGISTERED
        evidence[pile.told] = f"{rank.source}/piles.jsonl"
        if here:
            evidence[f"most samples show the ranks{at_line(here)}"] = f"{rank.source}/samples.jsonl"
    which = "fastest steps" if slower.at_best else "median step"
    claim = f"{which} of the first and the last fifth: {first} and {last}{of}; rank correlation with the step {slower.trend:.2f}"
    return Draft(
        strength=Strength.GUESS if slower.in_step else Strength.STRONG,
        summary=f"Steps keep getting slower: {first}{of} at first, {last} at the end ({1 / slower.last_s:.2g} a second), the growth mostly in {doing_in(part, slower.grown_s)}; {why}.",
        at=pile.place if pile else here,
        where=Where(phase=part.removesuffix("_s")),
        evidence={**evidence, claim: f"{rank.source}/blackbox.bin"},
        fix=fix,
    )


def _jumped(case: Case) -> Draft | None:
    """Steps that became many times slower at once and stayed so: a full cache, a fallback, an outlier that is kept."""
    rank = case.cell.ranks[0]
    onset = onset_of(case.steps[case.steps["rank"] == rank.rank])
    if onset is None:
        return None
    source = f"{rank.source}/blackbox.bin"
    part = max(PARTS, key=onset.grown_s)
    name = doing_in(part, onset.grown_s)
    since_ns = int(onset.before.end_s[-1] * 1e9) + case.cell.started_mono_ns
    here = _place(case.cell, part, since_ns=since_ns)
    first, last = seconds(onset.first_s), seconds(onset.last_s)
    given = f"; since then the inputs of a step are {onset.times_given:.3g} times as large"
    return Draft(
        # A planned switch, to longer inputs for example, is a jump too.
        strength=Strength.GUESS if onset.is_given_more else Strength.LIKELY,
        summary=f"Since step {onset.step} every step takes {onset.times:.0f} times as long as before: {first} until then, {last} since, most of it in {name}{at_line(here)}{given if onset.is_given_more else ''}.",
        at=here,
        where=Where(step=onset.step, phase=part.removesuffix("_s")),
        evidence={
            f"median of {len(onset.before)} steps before step {onset.step}: {first}; of the {len(onset.since)} since: {last}": source,
            f"of the median step, {name} has grown by {seconds(onset.grown_s(part))}": source,
        },
        fix=LARGER if onset.is_given_more else CHANGED,
    )


def _endless_graph(case: Case) -> Draft | None:
    """A Python loop over tokens that makes so many autograd nodes that one step looks like a hang."""
    rank = case.cell.ranks[0]
    source = f"{rank.source}/blackbox.bin"
    events, own = case.events_of(rank.rank), case.steps[case.steps["rank"] == rank.rank]
    busy = _looks_at_steps(case.cell, events)
    nodes, size = _graph_size(events)
    is_building = (
        bool(busy)
        and nodes == 0
        and not (events.kind == Kind.BACKWARD).any()
        and _is_open(events, Kind.FORWARD)
    )
    # A watch that knows how long a step takes takes no snapshot; then the step times show it.
    step_s = float(own.step_s.median()) if len(own) else 0.0
    if not (busy or step_s > LONG_STEP_S) or (nodes < MANY_NODES and not is_building):
        return None
    evidence = {f"a step takes {step_s:.0f} s": source}
    if busy:
        evidence = {f"at the last snapshot {busy[-1].reason}": "watch.json#looks"}
    evidence[f"the graph of one step has {size}" if nodes else "forward has not ended yet"] = source
    # Backward first: recomputation is a forward within it.
    passes = {"backward": Kind.BACKWARD, "forward": Kind.FORWARD} if case.cell.stopped else {}
    steps = int(rank.end.steps or 0)
    bound = f"backward walks {size}" if nodes else "forward is still building its graph"
    return Draft(
        strength=Strength.STRONG if nodes else Strength.LIKELY,
        summary=f"Not hung: every rank computes, {count(steps, 'step')} in {case.cell.watch.ended_s or 0.0:.0f} s; {bound}, one small operation after another.",
        at=_place(case.cell),
        where=Where(
            step=steps, phase=next((name for name, kind in passes.items() if _is_open(events, kind)), None)
        ),
        evidence={**evidence, **_largest(rank)},
        fix="Replace the Python loop over tokens by batched operations: time is the number of operations, not their size.",
    )


def _looks_at_steps(cell: CellEvidence, events: Table) -> list[Look]:
    """Snapshots of a busy job taken because a step was silent; one during start-up was due to imports."""
    # NaN where there is none, which no snapshot is later than.
    began_s = events.t_s[events.kind == Kind.FORWARD].min()
    looks = cell.watch.looks
    return [look for look in looks if look.judgement in ("busy", "progress") and look.t_s > began_s]


def _graph_size(events: Table) -> tuple[int, str]:
    """The nodes of the largest graph, as a number and in words; the count may have been capped."""
    graphs = events[events.kind == Kind.GRAPH]
    nodes = int(graphs.a.max()) if len(graphs) else 0
    capped = bool(graphs.loc[graphs.a == nodes, "b"].any())
    return nodes, f"{nodes:,}{' or more' if capped else ''} autograd nodes"


def _largest(rank: RankEvidence) -> Claims:
    """The module that made most nodes, and the most frequent node type."""
    modules, types = (rank.graph.modules or {}, rank.graph.types or {}) if rank.graph else ({}, {})
    if not modules or not types:
        return {}
    module, made = max(modules.items(), key=lambda item: item[1])
    kind, times = max(types.items(), key=lambda item: item[1])
    claim = f"{made:,} of these nodes were made in {module or 'no module'}; {times:,} are {kind}"
    return {claim: f"{rank.source}/graph.json"}


def _is_open(events: Table, kind: Kind) -> bool:
    """Whether the last pass of that kind has not ended."""
    passes = events[events.kind == kind]
    return len(passes) > 0 and passes.phase[-1] == Phase.BEGIN


def _loop_in_backward(case: Case) -> Draft | None:
    """A custom backward with a loop of small operations: slow from the first step, though the graph is small."""
    found, source = loop_in_backward(case), case.cell.ranks[0].source
    if found is None:
        return None
    times = found.backward_s / max(found.forward_s, 1e-6)
    return Draft(
        strength=Strength.LIKELY,
        summary=f"Every rank progresses, and a step takes {seconds(found.step_s)}, nearly all of it in a loop in Python{at_line(found.place)}: backward takes {times:.0f} times as long as forward.",
        at=found.place,
        where=Where(phase="backward"),
        evidence={
            f"{found.seen} of {found.samples} samples of the ranks are in that loop, at several of its lines": f"{source}/samples.jsonl",
            f"median of the last steps: {seconds(found.forward_s)} forward, {seconds(found.backward_s)} backward": f"{source}/blackbox.bin",
        },
        fix="Replace the loop in this backward by batched operations (a scan over whole tensors, a cumulative sum, a kernel): time is the number of operations, not their size.",
    )


def _loop_in_input(case: Case) -> Draft | None:
    """Nested Python loops that build the batches: slow from the first step, and worse the larger the batch."""
    found, source = loop_in_input(case), case.cell.ranks[0].source
    if found is None:
        return None
    return Draft(
        strength=Strength.LIKELY,
        summary=f"Every rank progresses, and a step takes {seconds(found.step_s)}, nearly all of it between steps, in {found.depth} nested loops in Python{at_line(found.place)}: the model takes {seconds(found.model_s)}.",
        at=found.place,
        where=Where(phase="input"),
        evidence={
            f"{found.seen} of {found.samples} samples of the ranks are in those loops": f"{source}/samples.jsonl",
            f"median of the last steps: {seconds(found.input_s)} before the forward, {seconds(found.model_s)} in forward and backward": f"{source}/blackbox.bin",
        },
        fix="Compare by a key (a hash, a sort, a set) or by batched operations instead of all pairs, or do it once before training.",
    )


def _steady(rank: RankEvidence, case: Case) -> Declined:
    """The time of the first and the last steps, for a job that does not slow down."""
    steps = case.steps[case.steps["rank"] == rank.rank].sort_values("step")
    if steps.empty:
        return Declined(f"rank {rank.rank} completed no step that could be timed")
    fifth = max(len(steps) // 5, 1)
    first, last = (seconds(float(part.step_s.median())) for part in (steps[:fifth], steps[-fifth:]))
    claim = (
        f"rank {rank.rank} took {first} a step at first and {last} at the end, of {count(len(steps), 'step')}"
    )
    return Declined(claim, f"{rank.source}/blackbox.bin")


def _place(cell: CellEvidence, part: str | None = None, *, since_ns: int = 0) -> Place | None:
    """The line at which the ranks are sampled most often, waits for peers left out.

    `part` is the part of the step that has grown; samples of the other parts say nothing about it.
    """
    samples = [sample for rank in cell.ranks for sample in rank.samples if sample.t_mono_ns >= since_ns]
    at_work = [sample for sample in samples if not locations.waits_for_peers(sample)]
    of_part = [s for s in at_work if part and _is_of(part, s)]
    seen = locations.most_seen(of_part or at_work or samples)
    return seen or _captured_at(cell) or locations.of_black_box(cell.ranks[0])


def _is_of(part: str, sample: Sample) -> bool:
    if part == "input_s":
        return not locations.in_a_step(sample)
    return locations.in_backward(sample) == (part == "backward_s")


def _captured_at(cell: CellEvidence) -> Place | None:
    """The line that most snapshots show, within the loop that most of them show, for a job without samples.

    A single snapshot may have caught what runs once before a loop that takes minutes.
    """
    captures = [capture for rank in cell.ranks for capture in reversed(rank.captures)]
    lines = [at for capture in captures if (at := locations.of_frames(capture.main_frames))]
    heads = {at: loops.head(cell.code, at) or at for at in lines}
    common = Counter(heads[at] for at in lines).most_common(1)
    in_common = [at for at in lines if heads[at] == common[0][0]]
    return Counter(in_common).most_common(1)[0][0] if in_common else None


RULE = Rule(
    means={"slow_compute": "All ranks progress, far more slowly than their own earlier steps predict."},
    family="performance",
    outcome="slow",
    detected="All ranks progress, and one of these holds. Steps keep growing: the last fifth takes 2.5 times as long as the first, with a trend; where something is known to accumulate, `where` is the line that registers it, and where the inputs grow with the time the confidence is 50 %. Or steps take eight times as long from one step on, permanently. Or the job was silent but busy, over a graph of 10,000 or more autograd nodes. Or most samples of every rank lie in a Python loop of a custom backward that takes ten times as long as forward, or in nested Python loops between steps that take ten times as long as the model.",
    fix="Look for what is added once a step at the line shown, or for a loop of small operations.",
    check=slow_compute,
    needs=("black_boxes",),
    explained_by=("straggler_rank",),
    confused_with=("straggler_rank", "missing_rank", "healthy"),
)
