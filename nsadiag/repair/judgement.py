"""The judgement of one patch: trials from the cheapest to the dearest, and the level that they prove."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

from nsadiag.evidence.phrases import count
from nsadiag.evidence.rehearsal.repair import Level, Shown
from nsadiag.repair.change import Change
from nsadiag.repair.conduct import conduct
from nsadiag.repair.proof import CRITERIA, NOTHING_COMPUTED, Trial, same_alone
from nsadiag.repair.record import Record
from nsadiag.repair.templates.template import COUNTED

SEEDS = (0, 1, 2)
# A rehearsal of a change (None: the job as it is) with so many ranks and a seed.
Rehearse = Callable[[Change | None, int, int], Record]
# The outcome of a real launch with a change, as a verdict names it.
Launch = Callable[[Change], str]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """`fixed`: all criteria are met. `agrees`: rehearsals agree and the launch is healthy, and no more is shown."""

    level: Level
    rows: tuple[Shown, ...]
    cost: str = ""  # what the patch leaves out, counted where it could be

    @property
    def reason(self) -> str:
        """The first criterion that is not met; empty where all are."""
        return reason_in(self.rows)


def reason_in(rows: tuple[Shown, ...]) -> str:
    """The first criterion that is not met, with the fact; empty where all are."""
    return next((f"{row.criterion}: {row.because}" for row in rows if not row.met), "")


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """The criteria as one rehearsal meets them; no trial where it did not agree."""

    rows: tuple[Shown, ...]
    trial: Trial | None = None

    @property
    def is_promising(self) -> bool:
        """Whether the whole proof may still be met."""
        return self.trial is not None and all(row.met for row in self.rows)


@dataclass
class Bench:
    """The trials of one job; of the job as it is each is made once."""

    rehearse: Rehearse
    launch: Launch
    ranks: int
    # By ranks that share no process, and so no hash salt; None where `rehearse` is so, too.
    cold: Rehearse | None = None
    known: dict[tuple[int, int], Record] = field(
        default_factory=dict
    )  # of the job without a patch, by ranks and seed

    def plain(self, ranks: int, seed: int = 0) -> Record:
        """The job without a patch."""
        if (ranks, seed) not in self.known:
            self.known[ranks, seed] = self.rehearse(None, ranks, seed)
        return self.known[ranks, seed]

    def sketched(self, change: Change, cost: str = "", counting: Change | None = None) -> Sketch:
        """One rehearsal with the patch, one that counts what it leaves out, and one of a rank alone where it is not refused yet."""
        after = self.rehearse(change, self.ranks, SEEDS[0])
        if after.answer != "agreed":
            return Sketch(rows=(_answered(f"{count(self.ranks, 'rank')}, seed {SEEDS[0]}", after),))
        trial = Trial(change=change, before=self.plain(self.ranks), after=after, cost=cost)
        rows = _rows(trial)
        if counting and all(row.met or row.criterion in ("steps", "same values") for row in rows):
            trial = dataclasses.replace(
                trial, counted=left_out(self.rehearse(counting, self.ranks, SEEDS[0]))
            )
            rows = _rows(trial)
        if all(row.met or row.because == NOTHING_COMPUTED for row in rows):
            alone = self.plain(1), self.rehearse(change, 1, SEEDS[0])
            trial = dataclasses.replace(trial, alone=alone)
            rows = _rows(trial)
        return Sketch(trial=trial, rows=rows)

    def proven(self, sketch: Sketch) -> Judgement:
        """The level of a patch; what only `fixed` needs is not tried where a criterion is not met already."""
        trial = sketch.trial
        if trial is None:
            return Judgement(level="nothing", rows=sketch.rows)
        agreed = self._agrees(trial.change)
        if not agreed.met:
            return Judgement(level="nothing", rows=(agreed,))
        outcome = self.launch(trial.change)
        launched = Shown(criterion="run", met=outcome == "healthy", because=f"a real launch is {outcome}")
        if not launched.met:
            return Judgement(level="nothing", rows=(agreed, launched))
        rows = (agreed, launched, *sketch.rows)
        level: Level = "fixed" if all(row.met for row in rows) else "agrees"
        return Judgement(level=level, rows=rows, cost=trial.counted or trial.cost)

    def _agrees(self, change: Change) -> Shown:
        """The other seeds, and one rank more."""
        for ranks, seed in ((self.ranks, SEEDS[1]), (self.ranks + 1, SEEDS[0]), (self.ranks, SEEDS[-1])):
            made = self.cold if self.cold and seed == SEEDS[-1] else self.rehearse
            after = made(change, ranks, seed)
            if after.answer == "agreed":
                continue
            if ranks != self.ranks and _fails_alike(self.plain(ranks), after):
                because = f"3 seeds; the job cannot run on {count(ranks, 'rank')}, with the patch or without"
                return Shown(criterion="rehearsals", met=True, because=because)
            return _answered(f"{count(ranks, 'rank')}, seed {seed}", after)
        because = f"{count(len(SEEDS), 'seed')} on {count(self.ranks, 'rank')}, and {self.ranks + 1} ranks"
        return Shown(criterion="rehearsals", met=True, because=because)


def _rows(trial: Trial) -> tuple[Shown, ...]:
    """Criteria of one trial; that of a rank alone where there was one."""
    asked = [criterion for criterion in CRITERIA if trial.alone or criterion is not same_alone]
    return (conduct(trial.change), *(criterion(trial) for criterion in asked))


def left_out(record: Record) -> str:
    """The sentence on what a patch leaves out, by the lines in which a counting trial says it; empty where none does."""
    parts = []
    for rank, own in sorted(record.ranks.items()):
        found = [line.removeprefix(COUNTED).split() for line in own.output if line.startswith(COUNTED)]
        taken, left = (sum(int(words[n]) for words in found) for n in (0, 1))
        if left:
            parts.append(f"{left:,} of {count(taken + left, 'round')} on rank {rank}")
    return f"left out: {', '.join(parts)}" if parts else ""


def _fails_alike(before: Record, after: Record) -> bool:
    return before.answer == after.answer == "raised" and before.why == after.why


def _answered(what: str, record: Record) -> Shown:
    return Shown(criterion="rehearsals", met=False, because=f"{what}: {record.answer}, {record.why}")
