"""Optimizer steps that one replica left out and its peers made, after the same backward: from there on it is another model."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from nsadiag.analysis.case import Case
from nsadiag.analysis.explain.candidate import shown
from nsadiag.analysis.explain.context import Context
from nsadiag.analysis.facts import locations
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.analysis.relations.call_paths import apart, passed_by
from nsadiag.analysis.relations.timeline import TimelineEvent
from nsadiag.analysis.rules.rule import Claims
from nsadiag.evidence.records import Place
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.source.control import Condition


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """The first backward after which ranks did not make the same number of steps."""

    backward: int  # from 1
    ranks: tuple[int, ...]  # who did otherwise than all had done until then
    made: int
    usual: int
    guard: Condition | None  # the condition on which the step hangs, where there is but one
    scaler: Place | None = (
        None  # where a gradient scaler left it out, as it had found inf or NaN in their gradients
    )

    @property
    def place(self) -> Place | None:
        return self.scaler or (self.guard.place if self.guard else None)

    @property
    def fix(self) -> str:
        if self.scaler:
            return "Reduce the gradients before scaler.unscale_ looks at them (what is not finite on one rank is so on all then), or all_reduce what each scaler found (MAX), so that all ranks leave out a step or none does."
        return "Agree on the flag first: all_reduce it (MAX or MIN), so that all ranks make the step or none does."

    def says(self, names: str) -> str:
        """The rest of a sentence."""
        if self.scaler:
            return f"the gradient scaler of rank {names} left out the optimizer's step after backward {self.backward}, for inf or NaN in gradients that are that rank's own, and those of the others did not"
        times = "no optimizer step" if not self.made else f"{self.made} optimizer steps"
        on = f" (`{shown(self.guard)}`)" if self.guard else ""
        return f"rank {names} made {times} after backward {self.backward}{on}, and the others {self.usual}"

    def evidence(self, cell: CellEvidence) -> Claims:
        """The number of steps of each rank, and of those that its scaler left out."""
        return {f"rank {r.rank} made {r.end.steps} optimizer steps{self._left_out(r)}": f"{r.source}/blackbox.bin" for r in cell.ranks[:8]
            if r.end.steps is not None}  # fmt: skip

    def _left_out(self, rank: RankEvidence) -> str:
        number = len(_scaled(rank.recording.events, skipped=True))
        return f", and its gradient scaler left out {number}" if self.scaler else ""


def skipped(case: Case, until: int) -> Skipped | None:
    """Before anybody had made `until` steps; None where their recordings do not reach back to the start."""
    s = Context(case)
    if len(s.timelines.events) < len(case.cell.ranks) or not s.timelines.are_whole:
        return None
    ranks = {rank: _backwards(events) for rank, events in s.timelines.events.items()}
    usual: dict[str, set[int]] = defaultdict(set)
    # Of the last one nobody knows what would have followed.
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
        # Before it has found its scale a scaler leaves out steps as well: of all ranks together.
        without = tuple(rank for rank, count in made.items() if not count)
        scaler = _by_a_scaler(case.cell, {rank: steps[rank] for rank in without})
        if scaler and 0 < 2 * len(without) <= len(made):
            return Skipped(backward=number + 1, ranks=without, made=0, usual=max(made.values()), guard=None, scaler=scaler)  # fmt: skip
        odd = tuple(rank for rank, count in made.items() if count not in known)
        # Where steps are not made after each backward, nobody can tell who did otherwise.
        if len(known) != 1 or not 0 < len(odd) < len(made):
            return None
        guard = _guard(s, ranks[odd[0]][number][0])
        return Skipped(
            backward=number + 1, ranks=odd, made=made[odd[0]], usual=min(known), guard=guard
        )  # fmt: skip
    return None


def _backwards(events: list[TimelineEvent]) -> list[tuple[TimelineEvent, int]]:
    """Each with the number of steps before the next."""
    found: list[tuple[TimelineEvent, int]] = []
    for event in events:
        if event.kind == Kind.BACKWARD:
            found.append((event, 0))
        elif event.kind == Kind.STEP and found:
            last, steps = found[-1]
            found[-1] = (last, steps + 1)
    return found


def _by_a_scaler(cell: CellEvidence, steps: dict[int, list[tuple[TimelineEvent, int]]]) -> Place | None:
    """The line at which scalers of all these ranks left out a step between the two backwards; None where one did not."""
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
    """Steps of gradient scalers: those that were left out; else the beginnings of all."""
    mine = events[events["kind"] == int(Kind.SCALER)]
    if skipped:
        return mine[(mine["phase"] == int(Phase.END)) & (mine["a"] == 1)]
    return mine[mine["phase"] == int(Phase.BEGIN)]


def _guard(context: Context, backward: TimelineEvent) -> Condition | None:
    """The one condition between that backward and a `.step()` that can differ between ranks."""
    if backward.place is None:
        return None
    behind = context.call_paths.to(backward.place)
    found: dict[tuple[str, int], Condition] = {}
    for (file, _), call in context.program.dataflow.calls.get("step", ()):
        way = context.call_paths.to(locations.place(file, call.lineno, None))
        for guard in [*apart(context.program, way, behind), *passed_by(context.program, way, behind)]:
            if guard.provenance != "uniform" and not guard.is_loop:
                found[guard.file, guard.line] = guard
    return next(iter(found.values())) if len(found) == 1 else None
