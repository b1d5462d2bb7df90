"""Optimizer steps that some replicas skipped and their peers made after the same backward."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from nsadiag.analysis.case import Case
from nsadiag.analysis.explain.candidate import shown
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.analysis.relations.timeline import TimelineEvent
from nsadiag.analysis.rules.rule import Claims
from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.source.control import Condition


@dataclass(frozen=True, kw_only=True)
class SkippedStep:
    """The first backward after which the ranks made different numbers of steps."""

    backward: int  # from 1
    ranks: tuple[int, ...]  # those that deviated from the usual number
    made: int
    usual: int
    guard: Condition | None  # the condition on which the step depends, if there is exactly one
    scaler: Place | None = (
        None  # the line of the gradient scaler that skipped it for inf or NaN in their gradients
    )

    @property
    def place(self) -> Place | None:
        return self.scaler or (self.guard.place if self.guard else None)

    @property
    def fix(self) -> str:
        if self.scaler:
            return "Reduce the gradients before scaler.unscale_ checks them (a non-finite value is then on all ranks), or all_reduce what each scaler found (MAX), so that all ranks skip a step or none does."
        return "Agree on the flag first: all_reduce it (MAX or MIN), so that all ranks make the step or none does."

    def says(self, names: str) -> str:
        """The rest of a sentence."""
        if self.scaler:
            return f"the gradient scaler of rank {names} skipped the optimizer's step after backward {self.backward}, because of inf or NaN in that rank's own gradients, and those of the others did not"
        times = count(self.made, "optimizer step")
        on = f" (`{shown(self.guard)}`)" if self.guard else ""
        return (
            f"rank {names} made {times} after backward {self.backward}{on}, and the others made {self.usual}"
        )

    def evidence(self, cell: CellEvidence) -> Claims:
        """The number of steps of each rank, and of those that its scaler skipped."""
        return {f"rank {r.rank} made {count(r.end.steps, 'optimizer step')}{self._left_out(r)}": f"{r.source}/blackbox.bin" for r in cell.ranks[:8]
            if r.end.steps is not None}  # fmt: skip

    def _left_out(self, rank: RankEvidence) -> str:
        number = len(_scaled(rank.recording.events, skipped=True))
        return f", and its gradient scaler skipped {number}" if self.scaler else ""


def skipped_step(case: Case, until: int) -> SkippedStep | None:
    """The first skipped step before `until`; None if the recordings do not reach back to the start."""
    s = Context(case)
    if len(s.timelines.events) < len(case.cell.ranks) or not s.timelines.are_whole:
        return None
    ranks = {rank: _backwards(events) for rank, events in s.timelines.events.items()}
    usual: dict[str, set[int]] = defaultdict(set)
    # What would have followed the last backward is unknown.
    for number in range(min(map(len, ranks.values())) - 1):
        lines = {backwards[number][0].at for backwards in ranks.values()}
        made = {rank: backwards[number][1] for rank, backwards in ranks.items()}
        begun = max(backwards[number][0].step for backwards in ranks.values())
        if len(lines) > 1 or begun >= until:
            return None
        known = usual[lines.pop()]
        if len({*made.values()}) == 1:
            known |= {*made.values()}
            continue
        steps = {rank: backwards[number : number + 2] for rank, backwards in ranks.items()}
        # While it searches for its scale a scaler also skips steps, on all ranks together.
        without = tuple(rank for rank, count in made.items() if not count)
        scaler = _by_a_scaler(case.cell, {rank: steps[rank] for rank in without})
        if scaler and 0 < 2 * len(without) <= len(made):
            return SkippedStep(backward=number + 1, ranks=without, made=0, usual=max(made.values()), guard=None, scaler=scaler)  # fmt: skip
        odd = tuple(rank for rank, count in made.items() if count not in known)
        # If steps do not follow each backward, no rank is an outlier.
        if len(known) != 1 or not 0 < len(odd) < len(made):
            return None
        guard = _guard(s, ranks[odd[0]][number][0])
        return SkippedStep(
            backward=number + 1, ranks=odd, made=made[odd[0]], usual=min(known), guard=guard
        )  # fmt: skip
    return None


def _backwards(events: list[TimelineEvent]) -> list[tuple[TimelineEvent, int]]:
    """The backwards, each with the number of steps before the next one."""
    found: list[tuple[TimelineEvent, int]] = []
    for event in events:
        if event.kind == Kind.BACKWARD:
            found.append((event, 0))
        elif event.kind == Kind.STEP and found:
            last, steps = found[-1]
            found[-1] = (last, steps + 1)
    return found


def _by_a_scaler(cell: CellEvidence, steps: dict[int, list[tuple[TimelineEvent, int]]]) -> Place | None:
    """The line at which the scalers of all these ranks skipped a step between the two backwards; None if one did not."""
    found = None
    for number, ((backward, _), (following, _)) in steps.items():
        recording = cell.rank(number).recording
        events = recording.events
        between = events[(events["t_ns"] > backward.t_ns) & (events["t_ns"] < following.t_ns)]
        if not len(_scaled(between, skipped=True)):
            return None
        begun = _scaled(between, skipped=False)
        found = found or (locations.of_text(recording.labels_of(begun)[0].site) if len(begun) else None)
    return found


def _scaled(events: Any, *, skipped: bool) -> Any:
    """Steps of gradient scalers: the skipped ones, or the start of all."""
    mine = events[events["kind"] == int(Kind.SCALER)]
    if skipped:
        return mine[(mine["phase"] == int(Phase.END)) & (mine["a"] == 1)]
    return mine[mine["phase"] == int(Phase.BEGIN)]


def _guard(context: Context, backward: TimelineEvent) -> Condition | None:
    """The only condition between that backward and a `.step()` that can differ between ranks."""
    if backward.place is None:
        return None
    behind = context.call_paths.to(backward.place)
    found: dict[tuple[str, int], Condition] = {}
    for (file, _), call in context.program.dataflow.calls.get("step", ()):
        way = context.call_paths.to(locations.place(file, call.lineno, None))
        for guard in [
            *context.differing(way, behind),
            *context.early_exits(way, behind),
        ]:
            if guard.provenance != "uniform" and not guard.is_loop:
                found[guard.file, guard.line] = guard
    return next(iter(found.values())) if len(found) == 1 else None
