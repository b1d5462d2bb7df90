"""Progress of a loop that calls into libraries, by the values in it that the rank itself reports.

From outside a tensor is an address. The rank is asked only where its own `while` is one that ends by comparing
variables alone, and while its interpreter runs.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nsadiag.agent.captures.target import CaptureError, NotApplicable
from nsadiag.evidence.user_code import is_user
from nsadiag.source.loop_exits import Frame, LoopSource, loop_around

Ask = Callable[[], Any]
FEWEST_ROUNDS = 3  # in one answer: else one round, slow as it may be, would pass for many


@dataclass(frozen=True, kw_only=True)
class Round:
    """The innermost such loop, by one answer."""

    source: LoopSource
    function: str
    lines: list[int]
    changes: list[str]  # variables, of all the user's functions on the stack, that took on new values
    seconds: float  # since it was first seen to go round without any


@dataclass
class _Known:
    at: tuple[str, int]  # file and line of the loop
    since: float
    values: dict[str, set[str]] = field(default_factory=dict)
    answers: int = 0


class Rounds:
    """Remembers from look to look what the ranks have told."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def forget(self) -> None:
        """There was progress: a loop that is met later is another one."""
        self._known.clear()

    def of(self, rank: int, stacks: Sequence[tuple[Frame, ...]], ask: Ask) -> Round | None:
        """The rank's own report, if `stacks` that were seen of it, outermost first, show a loop that is worth asking for."""
        # One that does not move may be a call that keeps the interpreter lock, and would never answer.
        if len(set(stacks)) < 2 or not _in_such_a_loop(stacks):
            return None
        try:
            told = ask()
        except (CaptureError, NotApplicable):
            return None
        found = _innermost(told) if isinstance(told, dict) and told.get("frames") else None
        if found is None:
            return None  # chance, as often as not: a loop that was left shows by another, or by an event
        source, function, lines = found
        known = self._known.get(rank)
        if known is None or known.at != (source.file, source.line):
            known = self._known[rank] = _Known(at=(source.file, source.line), since=time.monotonic())
        changes = _changes(told["values"], known)
        if changes:
            known.since = time.monotonic()
        known.answers += 1
        seconds = time.monotonic() - known.since if known.answers > 1 else 0.0
        return Round(source=source, function=function, lines=lines, changes=changes, seconds=seconds)


def _in_such_a_loop(stacks: Sequence[tuple[Frame, ...]]) -> bool:
    frames = {frame for stack in stacks for frame in stack if is_user(frame[0])}
    return any(_decided(file, function, {line}) for file, function, line in frames)


def _decided(file: str, function: str, lines: set[int]) -> LoopSource | None:
    source = loop_around(file, function, lines)
    return source if source is not None and source.decided_by else None


def _innermost(told: dict[str, Any]) -> tuple[LoopSource, str, list[int]] | None:
    """The innermost loop that goes round, with all that it compares in sight; None if it may end by anything else."""
    within: list[Frame] = [(file, name, line) for file, name, line in told["within"]]
    for frame in reversed(told["frames"]):
        file, function, lines = str(frame["filename"]), str(frame["name"]), list(map(int, frame["lines"]))
        source = loop_around(file, function, set(lines))
        if source is not None:
            shown = told["values"].get(f"{file}:{function}", {})
            fits = source.decided_by and source.decided_by <= set(shown)
            if not fits or rounds(source.node, lines) < FEWEST_ROUNDS or source.asks_a_clock(within):
                return None
            return source, function, sorted(set(lines))
        within += [(file, function, line) for line in set(lines)]
    return None


def rounds(loop: object, lines: Sequence[int]) -> int:
    """Number of times that an earlier statement of the loop's own came after a later one: what loops within it count as one."""
    begins = [statement.lineno for statement in getattr(loop, "body", ())]
    places = [sum(begin <= line for begin in begins) for line in lines]
    return sum(after < before for before, after in itertools.pairwise(places))


def _changes(values: dict[str, dict[str, tuple[list[str], list[str]]]], known: _Known) -> list[str]:
    """Names with values that had not been there before; the first answer's first half only shows what belongs to it."""
    found = []
    for function, names in values.items():
        for name, (early, late) in names.items():
            key = f"{function}:{name}"
            seen = known.values.get(key)
            new = set(late) - set(early) if seen is None else {*early, *late} - seen
            # A function that is met for the first time shows variables that nobody had seen: that says nothing.
            if new and (seen is not None or early):
                found.append(name)
            known.values.setdefault(key, set()).update(early, late)
    return sorted(set(found))
