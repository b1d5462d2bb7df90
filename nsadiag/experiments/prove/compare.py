"""The ranks beside one process, step by step: parameters as a step finds them, then gradients; the first difference ends it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from nsadiag.analysis.matrix.parity.tolerance import FLOOR, GRADIENT, tolerance_of
from nsadiag.experiments.prove.factors import common_factor
from nsadiag.experiments.prove.intent import averaged_now_and_then, compared_in_a_batch, rate_by_ranks
from nsadiag.experiments.prove.layout import CLOSE, Layout, Part, layout
from nsadiag.experiments.prove.origins import wrong_at_backward
from nsadiag.experiments.prove.outputs import Output, first_output
from nsadiag.experiments.prove.record import Array, Run
from nsadiag.experiments.prove.samples import Read, read

Judgement = Literal["same", "differs", "not_comparable"]
What = Literal["gradient", "update", "start", "data", "rate"]  # the last three: of a second start
SPREADS = 30.0  # of inputs moved in their last bits
UPDATE = 1e-2  # of a parameter's way since the start
ENOUGH = 3  # steps that agree, where others cannot be compared
OUTPUT = 10.0  # times what its parameters differ by
SMALL = 1e-4  # of a usual gradient: rounding alone, of which an optimizer may make a whole step


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A gradient, or the way of a parameter, on one rank and in one process."""

    rank: int
    name: str  # in the one process
    mine: Array = field(repr=False)
    other: Array = field(repr=False)
    part: Part
    relative: float  # distance by size
    bound: float


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The answer, with what differs first."""

    judgement: Judgement
    why: str = ""
    steps: int = 0  # that agree, or the one that differs
    what: What | None = None
    pairs: tuple[Pair, ...] = ()  # of that step, all of them
    layout: Layout | None = None
    unit: str = ""
    output: Output | None = None  # the first that differs, in that step
    remarks: tuple[str, ...] = ()
    precision: str = ""
    largest: float = 0.0  # of equal ones
    after: bool = False  # a restart, from which steps are counted
    at_backward: bool = False  # the gradient is wrong as backward leaves it
    rates: tuple[float, float] | None = (
        None  # learning rates that differ by then, of a rank and of one process
    )

    @property
    def differing(self) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.pairs if pair.relative > pair.bound)


Spread = Mapping[tuple[str, int, str], float]  # by kind, step and name: how far moved inputs move it


def prove(ranks: Run, alone: Run, spread: Spread | None = None) -> Proof:
    """Never raises on what is missing: it is not comparable then."""
    if refused := _unusable(ranks, alone):
        return Proof(judgement="not_comparable", why=refused)
    laid = layout(ranks, alone)
    if refused := _start(laid, ranks):
        return Proof(judgement="not_comparable", why=refused, layout=laid)
    precision = tolerance_of(ranks.precisions | alone.precisions).precision
    comparing = _Comparing(ranks, alone, laid, precision, spread or {})
    return comparing.result()


def _unusable(ranks: Run, alone: Run) -> str:
    if not alone.ranks or not alone.steps:
        return "alone, the command made no optimizer step"
    if not ranks.steps:
        return "no optimizer step is on record of every rank"
    if not ranks.is_whole:
        return f"{len(ranks.ranks)} of {ranks.world_size} ranks are on record"
    if alone.world_size != 1:
        return "the command alone started several processes"
    return ""


def _start(laid: Layout, ranks: Run) -> str:
    if laid.apart:
        rank, name = laid.apart[0]
        if rank and any(part.name == name for (_, own), part in laid.parts.items() if own == name):
            return f"the ranks start from different values: {name} of rank {rank} is another before the first step"
        return (
            f"they do not start from the same parameters: {name} of rank {rank} differs before the first step"
        )
    if not laid.parts:
        return "no parameter of the ranks is one of the one process's"
    if laid.unknown:
        rank, name = laid.unknown[0]
        return f"{name} of rank {rank} is no part of a parameter of one process"
    return ""


class _Comparing:
    def __init__(self, ranks: Run, alone: Run, laid: Layout, precision: str, spread: Spread) -> None:
        self._ranks, self._alone, self._laid = ranks, alone, laid
        self._precision, self._spread = precision, spread
        self._one = alone.ranks[0]
        self._largest = 0.0
        self._remarks: list[str] = []
        self._alike = True  # every rank is given all samples

    def result(self) -> Proof:
        steps, unit = min(self._ranks.steps, self._alone.steps), ""
        for step in range(steps):
            found = read(self._ranks, self._alone, step)
            if found.why:
                return self._ends(step, found)
            if (refused := self._other_work(found)) and not step:
                return Proof(judgement="not_comparable", why=refused, layout=self._laid)
            unit = found.unit
            self._alike = self._alike and found.copies
            for what, pairs in (("update", self._ways(step)), ("gradient", self._gradients(step))):
                if any(pair.relative > pair.bound for pair in pairs):
                    if what == "gradient" and self._scaled_on_purpose(step, pairs):
                        continue
                    return self._differs(step - (what == "update"), what, pairs, unit)  # type: ignore[arg-type]
                self._largest = max([self._largest, *(pair.relative for pair in pairs)])
        last = self._ways(steps)
        if any(pair.relative > pair.bound for pair in last):
            return self._differs(steps - 1, "update", last, unit)
        return self._same(steps, unit)

    def _other_work(self, found: Read) -> str:
        if "batch norm" in self._ranks.notes and not found.copies:
            return "batch norm in train mode: each rank normalises by its own part of the batch"
        return ""

    # -- answers ----------------------------------------------------------------------------------

    def _ends(self, step: int, found: Read) -> Proof:
        if step < ENOUGH:
            return Proof(judgement="not_comparable", why=f"step {step}: {found.why}", layout=self._laid)
        self._remarks.append(f"equal for {step} steps; from then on other samples are read ({found.why})")
        return self._same(step, "samples")

    def _same(self, steps: int, unit: str) -> Proof:
        return Proof(
            judgement="same", steps=steps, layout=self._laid, unit=unit, remarks=(*self._remarks, *self._said()),
            precision=self._precision, largest=self._largest,
        )  # fmt: skip

    def _said(self) -> list[str]:
        notes = self._ranks.notes | self._alone.notes
        told = ["dropout was off in both: what it does is not proved"] if "dropout" in notes else []
        if self._alike and not self._laid.is_split:
            told.append("every rank is given the same samples, and all of them")
        if self._one.all_of("joined"):
            told.append(
                "one process was given the samples that the ranks' loaders dealt: how they deal is not proved"
            )
        if "given" in self._alone.notes:
            told.append("one process was given the parameters that the ranks start from")
        return told

    def _differs(self, step: int, what: What, pairs: list[Pair], unit: str) -> Proof:
        refused, several = averaged_now_and_then(self._ranks, self._laid, step), len(self._ranks.ranks) > 1
        if not refused and what == "update" and several:
            refused = rate_by_ranks(self._ranks, self._one)
        if not refused and what == "gradient" and unit == "samples" and several and not self._laid.is_split:
            refused = compared_in_a_batch(self._ranks, self._one, step, pairs)
        if not refused and self._one.all_of("joined") and "met" not in self._ranks.notes:
            refused = "each rank reads data of its own, and they send each other nothing"
        if not refused and "random" in self._ranks.notes | self._alone.notes:
            refused = "the forward pass draws random numbers, and results differ"
        if not refused and {"given", "beside"} <= self._ranks.notes | self._alone.notes:
            refused = "the ranks start from other parameters than one process, and so may a model beside"
        if refused:
            return Proof(judgement="not_comparable", why=refused, layout=self._laid, steps=step)
        moved = max([0.0, *(pair.relative for pair in self._ways(step))])  # which outputs follow
        output = first_output(self._ranks, self._alone, step, self._precision) if unit == "samples" else None
        if output is not None and output.relative < OUTPUT * moved:
            output = None
        worst = max((pair for pair in pairs if pair.relative > pair.bound), key=lambda pair: pair.relative)
        at_backward = what == "gradient" and wrong_at_backward(self._ranks, self._one, self._laid, step, worst.name)  # fmt: skip
        return Proof(
            judgement="differs", steps=step, what=what, pairs=tuple(pairs), layout=self._laid, unit=unit,
            output=output, at_backward=at_backward, rates=self._rates(step), remarks=tuple(self._said()), precision=self._precision, largest=self._largest,
        )  # fmt: skip

    def _scaled_on_purpose(self, step: int, pairs: list[Pair]) -> bool:
        """Whether learning rates make up for one factor in all gradients: the ways of parameters then decide."""
        factor = common_factor([pair for pair in pairs if pair.other.any() or pair.mine.any()])
        theirs = [rate for row in self._one.rows("step", step) for rate in row.rates]
        rates = [
            [rate for row in rank.rows("step", step) for rate in row.rates] for rank in self._ranks.ranks
        ]
        if not factor or not theirs or not all(np.allclose(np.multiply(each, factor), theirs, rtol=1e-3) for each in rates if len(each) == len(theirs)):  # fmt: skip
            return False
        said = f"gradients are {factor:.3g} times as large, and learning rates 1/{factor:.3g}"
        self._remarks += [said] if said not in self._remarks else []
        return True

    def _rates(self, step: int) -> tuple[float, float] | None:
        """The first that differ in any step so far."""
        for each in range(step + 1):
            theirs = [rate for row in self._one.rows("step", each) for rate in row.rates]
            for rank in self._ranks.ranks:
                mine = [rate for row in rank.rows("step", each) for rate in row.rates]
                found = [(a, b) for a, b in zip(mine, theirs, strict=False) if abs(a - b) > CLOSE * abs(b)]
                if found:
                    return found[0]
        return None

    # -- what is compared -------------------------------------------------------------------------

    def _gradients(self, step: int) -> list[Pair]:
        """The gradients of one optimizer's step; a gradient that nobody computed is one of zeros."""
        theirs, held = self._one.named("gradient", step), self._one.named("parameter", step)
        whole = {name: self._gradient(name, theirs, held) for name in held}
        usual = _usual(whole)
        pairs = []
        for rank in self._ranks.ranks:
            mine = rank.named("gradient", step)
            for name, row in rank.named("parameter", step).items():
                part = self._laid.parts[rank.number, name]
                if part.name not in whole or row.local != rank.first[name].local:
                    continue
                if whole[part.name].shape != self._one.first[part.name].local:
                    continue
                other = part.of(whole[part.name]).reshape(row.local)
                value = rank.numbers(mine[name]) if name in mine else np.zeros(row.local)
                bound = max(GRADIENT[self._precision], self._spreads("gradient", step, part.name))
                size = max(float(np.linalg.norm(other)), FLOOR * usual * np.sqrt(other.size))
                pairs.append(_pair(rank.number, part, value, other, size, bound))
        return pairs

    def _gradient(self, name: str, rows: dict, held: dict) -> Array:  # type: ignore[type-arg]
        row = rows.get(name)
        return self._one.numbers(row) if row is not None else np.zeros(held[name].local)

    def _ways(self, step: int) -> list[Pair]:
        """The distance that each parameter has come since the start, where its gradients were more than rounding."""
        if not step:
            return []
        now, small = self._one.named("parameter", step), self._rounding(step)
        pairs = []
        for rank in self._ranks.ranks:
            for name, row in rank.named("parameter", step).items():
                part = self._laid.parts[rank.number, name]
                if part.name not in now or part.name in small or row.local != rank.first[name].local:
                    continue
                first = self._one.numbers(self._one.first[part.name])
                if now[part.name].local != first.shape:
                    continue
                other = part.of(self._one.numbers(now[part.name]) - first).reshape(row.local)
                value = rank.numbers(row) - part.of(first).reshape(row.local)
                bound = max(UPDATE, GRADIENT[self._precision], self._spreads("update", step, part.name))
                # Below a rounding error of the values themselves nothing is said.
                size = max(
                    float(np.linalg.norm(other)), CLOSE / bound * float(np.linalg.norm(part.of(first)))
                )
                pairs.append(_pair(rank.number, part, value, other, size, bound))
        return pairs

    def _rounding(self, step: int) -> set[str]:
        """Parameters whose gradient was nothing else in some step before: Adam makes a whole step of it."""
        found: set[str] = set()
        for before in range(step):
            rows = self._one.named("gradient", before)
            whole = {name: self._one.numbers(row) for name, row in rows.items()}
            usual = _usual(whole)
            found |= {name for name, value in whole.items() if value.size and 0 < _rms(value) < SMALL * usual}
        return found

    def _spreads(self, what: str, step: int, name: str) -> float:
        return SPREADS * self._spread.get((what, step, name), 0.0)


def spread_of(alone: Run, moved: list[Run]) -> Spread:
    """The distance by which runs that differ in their last bits part from the one that was not moved."""
    found: dict[tuple[str, int, str], float] = defaultdict(float)
    one = alone.ranks[0]
    for run in moved:
        if not run.ranks:
            continue
        other = run.ranks[0]
        for step in range(min(alone.steps, run.steps) + 1):
            for what, kind in (("gradient", "gradient"), ("update", "parameter")):
                rows = one.named(kind, step)
                whole = {name: one.numbers(row) for name, row in rows.items()}
                usual = _usual(whole) if what == "gradient" else 0.0
                for name, row in other.named(kind, step).items():
                    if name not in whole or row.local != whole[name].shape:
                        continue
                    mine, value = whole[name], other.numbers(row)
                    if what == "update":
                        mine = mine - one.numbers(one.first[name])
                        value = value - other.numbers(other.first[name])
                    size = max(float(np.linalg.norm(mine)), FLOOR * usual * np.sqrt(mine.size), 1e-30)
                    distance = float(np.linalg.norm(mine - value)) / size
                    found[what, step, name] = max(found[what, step, name], distance)
    return found


def _pair(rank: int, part: Part, mine: Array, other: Array, size: float, bound: float) -> Pair:
    distance = float(np.linalg.norm(mine - other))
    if not np.isfinite(distance):
        relative = 0.0 if not np.isfinite(mine).all() and not np.isfinite(other).all() else np.inf
    else:
        relative = distance / size if size else (np.inf if distance else 0.0)
    return Pair(rank=rank, name=part.name, mine=mine, other=other, part=part, relative=relative, bound=bound)


def _usual(whole: dict[str, Array]) -> float:
    """The root mean square of all elements."""
    count = sum(value.size for value in whole.values())
    return float(np.sqrt(sum(float((value**2).sum()) for value in whole.values()) / max(count, 1)))


def _rms(value: Array) -> float:
    return float(np.sqrt((value**2).mean()))
