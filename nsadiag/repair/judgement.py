"""The judgement of one patch: trials from the cheapest to the dearest, and the level that they prove."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from nsadiag.evidence.phrases import count
from nsadiag.evidence.rehearsal.repair import Level, Shown
from nsadiag.repair.change import Change
from nsadiag.repair.conduct import conduct
from nsadiag.repair.proof import CRITERIA, NOTHING_COMPUTED, Trial, same_alone
from nsadiag.repair.record import Record
from nsadiag.repair.sizes import cannot_grow
from nsadiag.repair.templates.template import COUNTED

SEEDS = (0, 1, 2)
# A rehearsal of a change (None: the job as it is) with so many ranks and a seed.
Rehearse = Callable[[Change | None, int, int], Record]
# The outcome of a real launch with a change, as a verdict names it; it is ended once the event is set.
Launch = Callable[[Change, threading.Event], str]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """`fixed`: all criteria are met. `agrees`: rehearsals agree and the launch is healthy, and no more is shown."""

    level: Level
    rows: tuple[Shown, ...]
    cost: str = ""  # what the patch leaves out, counted where it could be, and the limit of the proof
    loses: bool = False  # whether the patch leaves something out

    @property
    def said(self) -> str:
        """The level, as a headline has it."""
        return f"{self.level}, at a cost" if self.loses else self.level

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
        with _launched(self.launch, trial.change) as launching:
            agreed, limit = self._agrees(trial)
            if not agreed.met:
                return Judgement(level="nothing", rows=(agreed,))
            outcome = launching.result()
        launched = Shown(criterion="run", met=outcome == "healthy", because=f"a real launch is {outcome}")
        if not launched.met:
            return Judgement(level="nothing", rows=(agreed, launched))
        rows = (agreed, launched, *sketch.rows)
        level: Level = "fixed" if all(row.met for row in rows) else "agrees"
        cost = "; ".join(filter(None, (trial.counted or trial.cost, limit)))
        return Judgement(level=level, rows=rows, cost=cost, loses=bool(trial.counted or trial.cost))

    def _agrees(self, trial: Trial) -> tuple[Shown, str]:
        """The other seeds, and one rank more; and the limit of the proof, where the job is for exactly as many ranks as it has."""
        own, more = count(self.ranks, "rank"), f"{self.ranks + 1} ranks"
        limit, why = "", f"{count(len(SEEDS), 'seed')} on {own}, and {more}"
        for ranks, seed in ((self.ranks, SEEDS[1]), (self.ranks + 1, SEEDS[0]), (self.ranks, SEEDS[-1])):
            made = self.cold if self.cold and seed == SEEDS[-1] else self.rehearse
            after = made(trial.change, ranks, seed)
            if after.answer == "agreed":
                continue
            fixed_size = ranks != self.ranks and cannot_grow(
                trial.before, trial.after, self.plain(ranks), after, trial.change
            )
            if not fixed_size:
                return _answered(f"{count(ranks, 'rank')}, seed {seed}", after), ""
            limit = f"proven on {own} only"
            why = f"{count(len(SEEDS), 'seed')} on {own}; not on {more}, where the job fails with and without the patch: {fixed_size}"
        return Shown(criterion="rehearsals", met=True, because=why), limit


@contextlib.contextmanager
def _launched(launch: Launch, change: Change) -> Iterator[Future[str]]:
    """A launch beside the rehearsals, which leave a second core idle; it is ended where they make it needless."""
    unwanted = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="nsadiag-launch") as pool:
        try:
            yield pool.submit(launch, change, unwanted)
        finally:
            unwanted.set()


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


def _answered(what: str, record: Record) -> Shown:
    return Shown(criterion="rehearsals", met=False, because=f"{what}: {record.answer}, {record.why}")
