"""Does a rank that computes get anywhere? Whether a loop of Python goes round without anything in it ever changing.

py-spy tells the main thread's lines with the values of their variables; what is kept of the values is whether a
later one had been there before. A rank that computes goes on to values that are new; one that spins does not.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from nsadiag.agent.captures.python.nonblocking_stacks import NonblockingStacks
from nsadiag.agent.captures.target import CaptureError, NotApplicable
from nsadiag.agent.stillness.activity import RUNNABLE
from nsadiag.agent.stillness.loop_introspection import Ask, Rounds
from nsadiag.agent.stillness.loop_states import LoopStates, told_by, worth_asking
from nsadiag.evidence.documents.kernel import KernelProcess
from nsadiag.evidence.documents.python_stacks import PythonThread, frames_of_main
from nsadiag.evidence.user_code import is_installed, is_user
from nsadiag.source.loop_exits import Frame, LoopSource, loop_around

INTERVAL_S = 0.2
FEWEST = 6  # samples a look; fewer show too little of a loop
# For how long a loop must have gone round. Where its condition compares numbers that stay, it cannot end; where the
# state of an object decides, nobody can see into it, and only the time speaks.
DECIDED_S, OPAQUE_S = 8.0, 20.0
DECIDED_PAUSES, OPAQUE_PAUSES = 3.0, 5.0  # the same, in longest pauses of the job so far

Key = tuple[str, str]  # function and variable


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The main thread's frames, outermost first, and what their variables showed."""

    frames: tuple[Frame, ...]
    values: tuple[dict[str, str], ...]  # empty where nobody could see them


@dataclass(frozen=True, kw_only=True)
class Loop:
    """The innermost loop, by the samples of one look, and by those of the looks before."""

    file: str
    function: str
    line: int  # of the loop's own statement
    lines: list[int]  # that were seen of it
    stacks: int  # different ones among the samples
    samples: int
    changes: list[str]  # variables that took on values which had not been there before
    decided: bool  # whether what ends the loop can be read off its variables
    hidden: bool = False  # whether it changes objects from within, where nobody can look
    seconds: float  # since it was first seen to go round like this
    # Local variables that have a say in when it ends, and can be seen; and for how long none of these, nor what the
    # function was called with, took a new value.
    asks: list[str] = field(default_factory=list)
    asks_in_vain_s: float = 0.0
    # What has a say in its end took no new value for so long, by what the rank tells of itself; "" and 0 where nobody knows.
    stays: list[str] = field(default_factory=list)
    stays_s: float = 0.0
    constant: bool = False  # each of these had one value only
    recurs: int = 0  # rounds, followed line by line, after which all that has a say was what it had been
    text: str = ""  # the loop's own statement
    conditions: list[str] = field(default_factory=list)  # that would end it

    def is_endless(self, longest_pause_s: float) -> bool:
        """Whether it has gone round, without a change, for longer than any honest loop is likely to."""
        if self.recurs or self.stays:
            # The rank knows its own values better than samples from outside show them.
            return bool(self.recurs) or self.stays_s > max(OPAQUE_S, OPAQUE_PAUSES * longest_pause_s)
        if self.changes or (self.hidden and not self.decided):
            return False
        least, pauses = (DECIDED_S, DECIDED_PAUSES) if self.decided else (OPAQUE_S, OPAQUE_PAUSES)
        return self.seconds > max(least, pauses * longest_pause_s)


@dataclass
class _Known:
    """One rank's loop over several looks."""

    at: tuple[str, str]  # file and function: of nested loops now the one, now the other shows
    since: float
    values: dict[Key, set[str]] = field(default_factory=dict)
    # What was seen to run in it: the samples of one look may miss a part.
    within: set[Frame] = field(default_factory=set)
    stacks: Counter[tuple[Frame, ...]] = field(default_factory=Counter)
    looks: int = 0
    # Those who called it, with their variables: while these stay it is one and the same call.
    callers: set[tuple[Any, ...]] = field(default_factory=set)
    asked_since: float = field(default_factory=time.monotonic)


class Loops:
    """Samples ranks during a look; remembers from look to look what their loops had shown."""

    def __init__(self, stacks: NonblockingStacks | None = None) -> None:
        self._stacks = stacks or NonblockingStacks()
        self._samples: dict[int, list[Sample]] = {}
        self._known: dict[int, _Known] = {}
        self._next = 0.0
        self._rounds, self._states = Rounds(), LoopStates()

    def begin(self) -> None:
        """A new look."""
        self._samples.clear()
        self._next = 0.0

    def sample(self, pids: dict[int, int]) -> None:
        """One sample of each of the ranks (of rank to pid), if it is due: 10 ms of CPU each, and no pause."""
        now = time.monotonic()
        if now < self._next:
            return
        for rank, pid in pids.items():
            try:
                found = sample_of(self._stacks.at(rank, pid, with_locals=True))
            except (CaptureError, ValueError):
                continue
            if found and not self._stacks.shows_variables(pid):
                found = replace(found, values=())
            if found:
                self._samples.setdefault(rank, []).append(found)
        self._next = now + INTERVAL_S

    def forget(self) -> None:
        """There was progress: a loop that is met later is another one."""
        self._known.clear()
        self._rounds.forget()
        self._states.forget()

    def reported(self, rank: int, ask: Ask) -> Loop | None:
        """The same where the loop calls into libraries: by what the rank tells of itself, to be asked once a look."""
        samples = _whole(self._samples.get(rank, []))
        found = self._rounds.of(rank, [s.frames for s in samples], ask) if len(samples) >= FEWEST else None
        if found is None:
            return None
        return Loop(
            file=found.source.file,
            function=found.function,
            line=found.source.line,
            lines=found.lines,
            stacks=len({s.frames for s in samples}),
            samples=len(samples),
            changes=found.changes,
            # What it compares stays, and yet libraries may keep something that nobody sees: it gets the longer time.
            decided=False,
            seconds=found.seconds,
        )

    def staying(self, rank: int, loop: Loop | None, ask: Ask) -> Loop | None:
        """The loop, with what of it stays, where that can be told; another one where what goes round is around it."""
        samples = _whole(self._samples.get(rank, []))
        stacks = {s.frames for s in samples}
        # One that does not move may be a call that keeps the interpreter lock, and would never answer.
        users = [frame for stack in stacks for frame in stack if is_user(frame[0])]
        if len(samples) < FEWEST or not worth_asking(users):
            return loop
        if len(stacks) < 2 and not self._states.has_answered(rank):
            return loop
        try:
            told = told_by(ask())
        except (CaptureError, NotApplicable):
            return loop
        stays = self._states.of(rank, told, [s.frames for s in samples]) if told is not None else None
        if stays is None:
            return loop
        if loop is None or (loop.file, loop.line) != (stays.file, stays.line):
            loop = Loop(
                file=stays.file, function=stays.function, line=stays.line, lines=stays.lines, stacks=len(stacks),
                samples=len(samples), changes=[], decided=False, seconds=0.0,
            )  # fmt: skip
        return replace(
            loop, stays=list(stays.names), stays_s=stays.seconds, constant=stays.constant, text=stays.text,
            conditions=list(stays.conditions), recurs=stays.recurs,
        )  # fmt: skip

    def of(self, rank: int, *, in_vain: bool = False) -> Loop | None:
        """The loop of this look, to be asked for once a look; None if the rank is in no loop of its own.

        `in_vain`: what it calls of libraries is known to give it nothing, and may stand in it.
        """
        samples = _whole(self._samples.get(rank, []))
        seen = len(samples) >= FEWEST and all(sample.values for sample in samples)
        depth = common_depth(samples) if seen else None
        while in_vain and depth and not is_user(samples[0].frames[depth][0]):
            depth -= 1
        source = _loop(samples, depth, in_vain=in_vain) if depth is not None else None
        if depth is None or source is None:
            self._known.pop(rank, None)
            return None
        file, function, _ = samples[0].frames[depth]
        known = self._known.get(rank)
        if known is None or known.at != (file, function):
            known = self._known[rank] = _Known(at=(file, function), since=time.monotonic())
        known.stacks.update(s.frames for s in samples)
        known.within |= {frame for s in samples for frame in s.frames[depth + 1 :]}
        # One line, seen time and again, may be a single long call into C; once something else may be a torn read.
        moves = known.stacks.total() - max(known.stacks.values()) > 1
        if (source.calls and not moves) or source.asks_a_clock(known.within):
            return None
        now = time.monotonic()
        changed = _changed(samples, depth, source, known)
        changes = _matter(changed, samples, depth, source)
        asks = sorted(name for name in source.asked if _are_visible(samples, depth, frozenset({name})))
        if changes:
            known.since = now
        callers = {_callers(sample, depth) for sample in samples}
        moved = {name for level, name in changed if level == 0} & {*asks, *source.given}
        if not asks or moved or callers != known.callers:
            known.asked_since = now
        known.callers = callers
        known.looks += 1
        return Loop(
            file=file,
            function=function,
            line=source.line,
            lines=sorted({s.frames[depth][2] for s in samples}),
            stacks=len({s.frames for s in samples}),
            samples=len(samples),
            changes=changes,
            decided=source.decided_by is not None and _are_visible(samples, depth, source.decided_by),
            hidden=source.stores(known.within),
            seconds=now - known.since if known.looks > 1 else 0.0,
            asks=asks,
            asks_in_vain_s=now - known.asked_since,
        )


def running_in(proc: KernelProcess) -> int | None:
    """By a capture's proc.json: the rank itself if it runs, else the first of its children of Python that does."""
    if proc.state == RUNNABLE:
        return proc.pid
    return next((c.pid for c in proc.children if c.state == RUNNABLE and "python" in c.command), None)


def cpu_share_of(pid: int, before: KernelProcess, after: KernelProcess) -> float:
    """Share of one CPU used by the main thread of the rank, or by one of its children, between two captures."""
    then, now = (
        {**{c.pid: c.cpu_s for c in proc.children}, **{t.tid: t.cpu_s for t in proc.threads}}.get(pid, 0.0)
        for proc in (before, after)
    )
    seconds = after.seconds - before.seconds
    return (now - then) / seconds if seconds > 0 else 0.0


def sample_of(threads: Iterable[PythonThread]) -> Sample | None:
    """The main thread of what py-spy says."""
    frames = frames_of_main(threads)[::-1]
    if not frames:
        return None
    return Sample(
        frames=tuple((f.filename, f.name, f.line) for f in frames),
        values=tuple({v.name: str(v.repr) for v in f.locals or ()} for f in frames),
    )


def _whole(samples: list[Sample]) -> list[Sample]:
    """Without those that were read while the thread was calling or returning, and lack its outer frames."""
    bases = Counter(s.frames[0][:2] for s in samples)
    return [s for s in samples if s.frames[0][:2] == bases.most_common(1)[0][0]]


def common_depth(samples: list[Sample]) -> int | None:
    """Index of the innermost function that all samples are in, under one and the same way to it."""
    found = None
    for depth in range(min(len(s.frames) for s in samples)):
        if len({s.frames[depth][:2] for s in samples}) > 1:
            break
        found = depth
        if len({s.frames[depth][2] for s in samples}) > 1:
            break
    return found


def _loop(samples: list[Sample], depth: int, *, in_vain: bool) -> LoopSource | None:
    """The loop, if there is one, it is the user's, and all that runs in it is Python or in vain."""
    file, function, _ = samples[0].frames[depth]
    within = {frame for s in samples for frame in s.frames[depth + 1 :]}
    if not is_user(file) or (not in_vain and any(is_installed(frame[0]) for frame in within)):
        return None
    return loop_around(file, function, {s.frames[depth][2] for s in samples})


def _are_visible(samples: list[Sample], depth: int, names: frozenset[str]) -> bool:
    """Whether py-spy shows these variables in full: no object of unknown state, no list that it cuts short."""
    shown = [s.values[depth].get(name) for s in samples for name in names]
    return all(value is not None and not value.startswith("<") and "..." not in value for value in shown)


def _changed(samples: list[Sample], depth: int, source: LoopSource, known: _Known) -> set[tuple[int, str]]:
    """Variables, by level and name, with values that earlier samples had not shown; takes note of all that were there."""
    # A loop that is met for the first time has no values before it: its own first half shows what belongs to it.
    first = len(samples) // 2 if known.looks == 0 else 0
    found: set[tuple[int, str]] = set()
    for (level, function, name), values in _sequences(samples, depth).items():
        seen = known.values.setdefault((function, name), set())
        seen.update(values[: min(first, len(values))])
        # Of a long list only the beginning is shown: what was added to it cannot be seen.
        cut_short = level == 0 and name in source.asked and any("..." in value for value in values)
        if cut_short or _are_new(values[first:], seen):
            found.add((level, name))
        seen.update(values)
    return found


def _matter(
    changed: set[tuple[int, str]], samples: list[Sample], depth: int, source: LoopSource
) -> list[str]:
    """Names of those that count: where some alone decide when the loop ends, these, and what is cut short."""
    decided = source.decided_by
    if decided is None or not _are_visible(samples, depth, decided):
        return sorted({name for _, name in changed})
    return sorted({name for level, name in changed if level == 0 and name in decided | source.asked})


def _callers(sample: Sample, depth: int) -> tuple[Any, ...]:
    """The user's frames above the loop's, with their variables."""
    pairs = zip(sample.frames[:depth], sample.values[:depth], strict=True)
    return tuple((frame, *sorted(values.items())) for frame, values in pairs if is_user(frame[0]))


def _sequences(samples: list[Sample], depth: int) -> dict[tuple[int, str, str], list[str]]:
    """By frame below `depth`, function and variable: the values that the samples showed, in their order."""
    found: dict[tuple[int, str, str], list[str]] = {}
    for sample in samples:
        for level, values in enumerate(sample.values[depth:]):
            file, function, _ = sample.frames[depth + level]
            # The standard library makes objects of its own for each call.
            if is_user(file):
                for name, value in values.items():
                    found.setdefault((level, function, name), []).append(value)
    return found


def _are_new(values: list[str], seen: set[str]) -> bool:
    """Whether any had not been there; one alone, with the old ones back behind it, was read while it was written."""
    new = [value for value in values if value not in seen]
    torn = len(new) == 1 and len(values) > 2 and values[-1] in seen
    return bool(new) and not torn
