"""A failing script cut down to a file that stands alone and fails in the same way."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nsadiag
from nsadiag.evidence.layout import make_private_dir, write_private
from nsadiag.evidence.records import Verdict
from nsadiag.experiments.reduce import Reducer
from nsadiag.experiments.rewriting.edits import Cut, cuts
from nsadiag.experiments.rewriting.inline import CannotInline, inlined
from nsadiag.experiments.rewriting.inline import Wanted as WantedLine
from nsadiag.experiments.rewriting.priors import Priors, executed
from nsadiag.experiments.rewriting.program import Program
from nsadiag.experiments.rewriting.tidying import inlined_calls, inlined_values, literal_options
from nsadiag.experiments.rewriting.trims import small_numbers, trims
from nsadiag.experiments.trial import Job, Pace, Slots, Trial, Wanted, quicker, torchrun, waited_for

EXECUTED = Path(nsadiag.__file__).parent / "worker" / "executed.py"
# A job that is known to hang shows it soon; whatever is called hung too early fails the confirmation.
# The failure is known: what never came before is not waited for in every trial.
QUICK = Pace(stall_after_s=1.2, looks_apart_s=0.8, thorough=False, believes_world=False, timeout_s=120.0)
PATIENT = Pace(timeout_s=180.0)
REHEARSED = ("hung", "crashed")  # outcomes of failures that a rehearsal may show
Note = Callable[[str], None]


class Lost(Exception):
    """The failure did not come back; the text says what came instead."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A script that fails, how it is run, and in which way it fails."""

    script: Path
    job: Job  # with the script as its first word; a module's `-m name` was replaced by its file
    roots: tuple[Path, ...]
    verdict: Verdict

    def line(self) -> WantedLine | None:
        where = self.verdict.where
        if where is None or where.library or not where.file or not where.line:
            return None
        return WantedLine(file=Path(where.file), line=where.line)


@dataclass(kw_only=True)
class Shrunk:
    """The result of shrinking a script."""

    program: Program
    verdict: Verdict
    history: list[Program]
    trials: int
    notes: list[str] = field(default_factory=list)


class Bench:
    """Runs candidates of one target; each has a folder of its own, that goes when its verdict is known."""

    def __init__(self, target: Target, slots: Slots, folder: Path, note: Note) -> None:
        self.target, self.slots, self.note = target, slots, note
        self.folder = make_private_dir(folder)
        self.pace = QUICK
        self.wanted = Wanted.of(target.verdict)
        self.verdict = target.verdict
        self.trials = 0
        # What cannot be matched is told in a second: a failure that a rehearsal shows needs no hang to be waited for.
        if target.verdict.outcome in REHEARSED:
            self.pace = dataclasses.replace(QUICK, rehearsed=True)
        self.afresh = False  # ranks of a torchrun of their own, not forked from a warm launcher
        self._took: list[
            float
        ] = []  # seconds of trials that failed as wanted, as many as tell how it goes now
        self._numbers = itertools.count(1)

    def submit(
        self, text: str | None, *, notes: bool = False, beside: bool = False, pace: Pace | None = None
    ) -> Future[Trial]:
        """Begins a trial: of a text, or of the script as it is. `beside`: with its neighbours in reach."""
        self.trials += 1
        place = make_private_dir(self.folder / f"{next(self._numbers):04d}")
        script = place / self.target.script.name
        write_private(script, self.target.script.read_text(encoding="utf-8") if text is None else text)
        if beside:  # after the script itself is there: written through a link, it would be the user's
            _link_neighbours(self.target.script.parent, place)
        words = (str(script), *self.target.job.argv[1:])
        if notes:
            words = (str(EXECUTED), str(place / "lines"), *words)
        job = dataclasses.replace(self.target.job, argv=words)
        if self.afresh:
            job = dataclasses.replace(job, launcher=torchrun(job.world_size))
        return self.slots.submit(job, place / "run", pace or self.pace)

    def ask(self, text: str) -> Future[bool]:
        """Try the text: does it fail as the target does?"""
        answer: Future[bool] = Future()

        def done(trial: Future[Trial]) -> None:
            error = trial.exception()
            if error is not None:
                answer.set_exception(error)
                return
            same = self.is_same(trial.result())
            self._told(trial.result(), text, same=same)
            answer.set_result(same)

        self.submit(text).add_done_callback(done)
        return answer

    def is_same(self, trial: Trial) -> bool:
        # A rehearsal ends before the mismatch that a backend hangs in, or rejects.
        wanted = self.wanted.as_in(trial.verdict) if self.pace.rehearsed else self.wanted
        return wanted.seen_in(trial.verdict)

    def _told(self, trial: Trial, text: str, *, same: bool) -> None:
        if same:
            self.verdict = trial.verdict
            # The first trials waited for their launchers: a limit by those would let a spinning candidate run on.
            self._took = [*self._took[-3:], trial.wall_s]
            self.pace = dataclasses.replace(self.pace, timeout_s=10.0 + 3.0 * max(self._took))
        said = "same" if same else self.wanted.instead(trial.verdict)
        self.note(f"{text.count(chr(10)):4d} lines, {trial.wall_s:4.1f} s: {said}")
        shutil.rmtree(trial.directory.parent, ignore_errors=True)


def _link_neighbours(source: Path, place: Path) -> None:
    """Link a script's neighbours into the trial's directory: its modules, its data."""
    for entry in source.iterdir():
        if not (place / entry.name).exists() and entry.name != "__pycache__":
            (place / entry.name).symlink_to(entry.resolve())


def shrink(bench: Bench, *, deadline: float) -> Shrunk:
    """Raises Lost where the target does not fail any more as it is said to."""
    notes: list[str] = []
    program, lines, options = _begin(bench, notes)
    known = executed(program, program.text(), lines) if lines else None
    reducer = Reducer(best=program, ask=bench.ask, at_once=bench.slots.count, deadline=deadline)
    priors = Priors(program, known)

    def first(present: Program) -> Iterator[Cut]:
        yield from cuts(present)
        yield from literal_options(present, options)

    reducer.stage(first, priors.of)
    reducer.stage(trims, lambda _program, cut: 0.15 if cut.detail in ("orelse", "body") else 0.25)
    reducer.stage(inlined_values, lambda *_: 0.1)
    again = Priors(reducer.best, None)
    reducer.stage(cuts, again.of)
    reducer.stage(inlined_calls, lambda *_: 0.15)
    reducer.stage(small_numbers, lambda *_: 0.3)
    reducer.stage(cuts, again.of, again=0.7)
    if reducer.out_of_time():
        notes.append("time was up: less may be possible with a longer --budget")
    return Shrunk(
        program=reducer.best,
        verdict=bench.verdict,
        history=reducer.accepted,
        trials=bench.trials,
        notes=notes,
    )


def _begin(bench: Bench, notes: list[str]) -> tuple[Program, set[int], dict[str, Any]]:
    """The job as it is, and beside it as one file: which of both fails as it should, and how patient to be."""
    one_file = _one_file(bench, notes)
    text = one_file.text()
    plain, alone = bench.submit(None, beside=True), bench.submit(text, notes=True)
    first, second = waited_for(plain), waited_for(alone)
    bench.note(f"as it is: {first.verdict.outcome} ({first.verdict.cls}), {first.wall_s:.1f} s")
    if bench.pace.rehearsed and not (bench.is_same(first) and bench.is_same(second)):
        bench.pace = QUICK
        bench.note(f"a rehearsal does not show it ({bench.wanted.instead(first.verdict)}): as a real run")
        plain, alone = bench.submit(None, beside=True), bench.submit(text, notes=True)
        first, second = waited_for(plain), waited_for(alone)
    if not bench.is_same(first) and not bench.is_same(second):
        bench.pace = PATIENT
        bench.note("once more, with more patience")
        plain, alone = bench.submit(None, beside=True), bench.submit(text, notes=True)
        first, second = waited_for(plain), waited_for(alone)
    if not bench.is_same(first) and not bench.is_same(second) and not bench.target.job.launcher:
        # Forked ranks share what a new interpreter draws for itself, such as the order of a set of strings.
        bench.note("once more, with ranks of their own Python")
        bench.afresh = True
        notes.append("does not fail on forked ranks: each trial started a new Python")
        plain, alone = bench.submit(None, beside=True), bench.submit(text, notes=True)
        first, second = waited_for(plain), waited_for(alone)
        whichever = dataclasses.replace(bench.wanted, any_parameter=bench.wanted.parameter is not None)
        if not bench.is_same(first) and not bench.is_same(second) and whichever.seen_in(first.verdict):
            bench.wanted = whichever
            notes.append("the parameter is another in each run of the program itself: any will do")
    if bench.pace.rehearsed:
        notes.append("each trial was a rehearsal: calls were compared before they were made")
    else:
        bench.wanted = bench.wanted.as_in(second.verdict)
    if bench.is_same(second):
        bench.pace = quicker(bench.pace, second)
        bench.verdict = second.verdict
        place = second.directory.parent
        return one_file, _lines_run(place), _options_seen(place)
    if bench.is_same(first):
        bench.pace = quicker(bench.pace, first)
        # Tracing, or being one file, changed something: without the tracing it may be told which.
        if bench.is_same(waited_for(bench.submit(text))):
            return one_file, set(), {}
        raise Lost(f"as one file without its comments it is {bench.wanted.instead(second.verdict)}")
    raise Lost(f"it is {bench.wanted.instead(first.verdict)}: {first.verdict.summary}")


def _one_file(bench: Bench, notes: list[str]) -> Program:
    target = bench.target
    try:
        program, modules = inlined(target.script, target.roots, wanted=target.line())
    except CannotInline as error:
        raise Lost(f"its modules cannot be put into one file: {error}") from None
    if modules:
        notes.append(f"put into one file: {', '.join(sorted(m.name for m in modules))}")
    return program


def _lines_run(place: Path) -> set[int]:
    found: set[int] = set()
    for file in place.glob("lines.*"):
        if file.suffix != ".options":
            found |= {int(word) for word in file.read_text().split() if word.isdigit()}
    return found


def _options_seen(place: Path) -> dict[str, Any]:
    """The options that argparse parsed, where all ranks agree on them and it parsed once."""
    seen = {file.read_text() for file in place.glob("lines.*.options")}
    text = seen.pop() if len(seen) == 1 else ""
    found = json.loads(text) if text.count("\n") == 1 else None
    return found if isinstance(found, dict) else {}


def third_parties(program: Program) -> set[str]:
    """The imports of the file besides torch and the standard library."""
    import sys

    names: set[str] = set()
    for node in ast.walk(program.tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"torch"}


def further_and_further_back(history: list[Program], most: int) -> list[Program]:
    """The smallest first, then what it was cut from 1, 3, 7, ... steps before.

    A cut that left the failure to chance, such as a seed's, may have been taken by luck long before the last.
    """
    back = [2**n - 1 for n in range(most)]
    return [history[-1 - steps] for steps in back if steps < len(history)]
