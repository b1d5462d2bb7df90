"""Cuts a program down while one question about it keeps its answer; questions cost seconds, so few are asked."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from nsadiag.agent import interrupts
from nsadiag.experiments.choice import Chosen, Doubts, choose, merged
from nsadiag.experiments.rewriting.danger import is_safe, zones
from nsadiag.experiments.rewriting.edits import Cut, CutId
from nsadiag.experiments.rewriting.program import Program, undefined

POLL_S = 0.1
CHARACTERS_A_LINE = 200.0  # so many count as much as a line
Ask = Callable[[str], "Future[bool]"]  # whether a candidate still fails in the same way
Source = Callable[[Program], Iterable[Cut]]
Prior = Callable[[Program, Cut], float]


@dataclass(frozen=True, kw_only=True)
class Flight:
    """A candidate that is being tried."""

    program: Program
    text: str
    base: Program
    chosen: Chosen


@dataclass(kw_only=True)
class Option:
    """A cut of the present program that leaves a program, and what it would gain."""

    cut: Cut
    gain: float


@dataclass(kw_only=True)
class Reducer:
    """`best` is the smallest program so far that still fails; `accepted` are all of them, the first one first."""

    best: Program
    ask: Ask
    at_once: int
    deadline: float  # monotonic seconds
    asked: int = 0
    accepted: list[Program] = field(default_factory=list)
    _answers: dict[str, bool] = field(default_factory=dict)
    _doubts: Doubts = field(default_factory=Doubts)
    _offered: tuple[Program, Source, list[Option]] | None = None

    def __post_init__(self) -> None:
        self._zones = zones(self.best)
        self._undefined = undefined(self.best.tree)
        self.accepted.append(self.best)

    def stage(self, source: Source, prior: Prior, *, again: float | None = None) -> bool:
        """Tries what `source` offers until nothing of it can go; whether anything went.

        `again`: the doubt with which cuts that failed alone are tried once more, now that others went.
        """
        before = self.best
        if again is not None:
            self._doubts.forget(list(self._doubts.needed), again)
        self._exhaust(source, prior, self._doubts)
        return self.best is not before

    def out_of_time(self) -> bool:
        return time.monotonic() > self.deadline

    def _exhaust(self, source: Source, prior: Prior, doubts: Doubts) -> None:
        flights: dict[Future[bool], Flight] = {}
        while True:
            while len(flights) < self.at_once and not self.out_of_time():
                flight = self._next(source, prior, doubts, flights.values())
                if flight is None:
                    break
                flights[self.ask(flight.text)] = flight
                self.asked += 1
            if not flights:
                return
            for answer in self._answered(flights):
                self._learn(flights.pop(answer), answer.result(), doubts)

    def _answered(self, flights: Iterable[Future[bool]]) -> set[Future[bool]]:
        while True:
            interrupts.check()
            done, _ = wait(flights, timeout=POLL_S, return_when=FIRST_COMPLETED)
            if done:
                return done

    def _next(self, source: Source, prior: Prior, doubts: Doubts, flights: Iterable[Flight]) -> Flight | None:
        """The next candidate that only a run can judge; what is known already is learnt on the way."""
        busy = {one for flight in flights for one in flight.chosen.ids}
        busy_texts = {flight.text for flight in flights}
        while True:
            options = {o.cut.id: o for o in self._options(source) if o.cut.id not in busy}
            doubts.expect({one: prior(self.best, o.cut) for one, o in options.items()})
            open_cuts = [o.cut for o in options.values() if not self._holds_needed(o.cut, options, doubts)]
            chosen = choose(open_cuts, doubts, {one: o.gain for one, o in options.items()})
            if chosen is None:
                return None
            program = self.best.applied(merged(chosen.cuts))
            text = program.text()
            if text in busy_texts:
                return None
            answer = self._answers.get(text)
            if answer is None and self._is_sound(program, text):
                return Flight(program=program, text=text, base=self.best, chosen=chosen)
            if answer:
                self._accept(program)
            else:
                doubts.failed(chosen.cuts)

    def _holds_needed(self, cut: Cut, options: dict[CutId, Option], doubts: Doubts) -> bool:
        """The cut contains one that failed alone, so it will fail as well."""
        return any(
            other.cut.gone < cut.gone
            for one, other in options.items()
            if other.cut.gone and doubts.needed.get(one, 0.0) >= 1.0
        )

    def _options(self, source: Source) -> list[Option]:
        if self._offered is None or self._offered[0] is not self.best or self._offered[1] is not source:
            self._offered = (self.best, source, list(self._found(source)))
        return self._offered[2]

    def _found(self, source: Source) -> Iterator[Option]:
        text = self.best.text()
        lines = text.count("\n")
        for cut in source(self.best):
            program = self.best.applied(cut.edits)
            smaller = program.text()
            if smaller == text or not self._is_sound(program, smaller):
                continue
            gain = lines - smaller.count("\n") + (len(text) - len(smaller)) / CHARACTERS_A_LINE
            if gain > 0:
                yield Option(cut=cut, gain=gain)

    def _is_sound(self, program: Program, text: str) -> bool:
        """Whether it is worth a run: it compiles, knows its names, and does no harm."""
        present = {getattr(s, "number", -1) for s in program.statements()}
        if not program.kept <= present or undefined(program.tree) - self._undefined:
            return False
        try:
            compile(text, "candidate", "exec")
            ast.parse(text)
        except (SyntaxError, ValueError):
            return False
        return is_safe(program, self._zones)

    def _learn(self, flight: Flight, same: bool, doubts: Doubts) -> None:
        self._answers[flight.text] = same
        if not same:
            doubts.failed(flight.chosen.cuts)
        elif flight.base is self.best:
            self._accept(flight.program)
        else:
            # Another candidate was taken meanwhile: both together have to be tried.
            doubts.passed(flight.chosen.cuts)

    def _accept(self, program: Program) -> None:
        self.best = program
        self.accepted.append(program)
