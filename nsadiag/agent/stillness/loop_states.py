"""The loop that a rank does not leave, by what has a say in its end: whether any of that still takes a new value.

Unlike all variables of a loop, these are few: a counter, a sum or a log may go on growing in a loop that nothing ends.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nsadiag.agent.stillness.loop_introspection import rounds
from nsadiag.evidence.rehearsal.reads import Read
from nsadiag.source.loop_exits import Frame, source_of
from nsadiag.source.model import Loop as Node
from nsadiag.source.model import SourceFile, spans
from nsadiag.source.patterns.endings import EndlessLoop, endless_around, endless_loop
from nsadiag.source.patterns.loop_state import LoopState, state_of

FEWEST_ROUNDS = 3  # in all answers together: else one round, slow as it may be, would pass for many
FOREVER = ("itertools.cycle", "itertools.count", "itertools.repeat")
# Kinds of values of which a part is unseen, and that part counts only where something is called on the value.
SHALLOW = "object "
SEEN_BY_WHAT_COMES = ("random.", "numpy.random.", "torch._C.Generator", "itertools.")

Tokens = dict[str, dict[str, tuple[list[str], list[str]]]]


@dataclass(frozen=True, kw_only=True)
class Stays:
    """A loop that goes round while nothing that has a say in its end takes a new value."""

    file: str
    function: str
    line: int
    lines: list[int]
    text: str  # the loop's own statement
    conditions: tuple[str, ...]
    names: tuple[str, ...]  # that have a say
    seconds: float  # since the last new value
    constant: bool  # each had one value only


@dataclass
class _Known:
    at: tuple[str, int]
    since: float
    rounds: int = 0
    answers: int = 0
    tokens: dict[tuple[str, str], set[str]] = field(default_factory=dict)


class _Candidate(NamedTuple):
    file: str
    function: str
    lines: list[int]
    turns: int  # in one answer
    loop: EndlessLoop
    state: LoopState


class LoopStates:
    """Remembers from look to look what the ranks have told."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def forget(self) -> None:
        """There was progress: a loop that is met later is another one."""
        self._known.clear()

    def of(self, rank: int, told: dict[str, Any], stacks: Sequence[tuple[Frame, ...]]) -> Stays | None:
        """By the newest answer of the rank; None as long as nothing speaks for a loop without an end.

        `stacks` were seen of it from outside, in order: its own interpreter answers at few of a loop's lines.
        """
        found = _candidate(told, stacks)
        if found is None:
            return None  # chance, as often as not: a loop that was left shows by another, or by an event
        file, function, loop = found.file, found.function, found.loop
        known = self._known.get(rank)
        if known is None or known.at != (file, loop.first):
            known = self._known[rank] = _Known(at=(file, loop.first), since=time.monotonic())
        names, is_new = _compared(told["state"]["tokens"], known, _within(told, file, function), found.state)
        known.rounds += found.turns
        known.answers += 1
        if is_new:
            known.since = time.monotonic()
        if known.rounds < FEWEST_ROUNDS or known.answers < 2:
            return None
        return Stays(
            file=file, function=function, line=loop.first, lines=sorted({*found.lines}), text=loop.text,
            conditions=found.state.conditions, names=names, seconds=time.monotonic() - known.since,
            constant=all(len(seen) == 1 for seen in known.tokens.values()),
        )  # fmt: skip


def worth_asking(frames: list[tuple[str, str, int]]) -> bool:
    """Whether any of these lines is in a loop that may go on for ever."""
    return any(
        any(isinstance(node, ast.While) or not _is_bounded(node) for node in source.loops_around(line))
        for file, _, line in frames
        if (source := source_of(file)) is not None
    )


def _is_bounded(node: Node) -> bool:
    given = node.iter if isinstance(node, ast.For) else None
    return isinstance(given, ast.Call) and isinstance(given.func, ast.Name) and given.func.id == "range"


def _candidate(told: dict[str, Any], stacks: Sequence[tuple[Frame, ...]]) -> _Candidate | None:
    """The outermost loop that goes round, if it has no end of its own and all is known that has a say in its end.

    Whatever goes round within it comes to its end each time.
    """
    for frame in told.get("frames", ()):
        file, function, lines = str(frame["filename"]), str(frame["name"]), list(map(int, frame["lines"]))
        source = source_of(file)
        for node in source.loops_around(lines[-1])[::-1] if source is not None else ():
            turns = _turns(node, file, function, lines, stacks)
            if source is None or not turns:
                continue
            found = _endless(source, node, told, f"{file}:{function}")
            if found is None:
                return None
            state = state_of(source, found, node)
            unknown = state.asks or _unseen(told, file, function, state)
            return None if unknown else _Candidate(file, function, lines, turns, found, state)
    return None


def _turns(
    node: Node, file: str, function: str, lines: list[int], stacks: Sequence[tuple[Frame, ...]]
) -> int:
    """The number of times that the loop was seen to go round, of which no line lies outside."""
    own = ([line for f, name, line in s if f == file and name.rpartition(".")[2] == function] for s in stacks)
    seen = [
        lines_of[0] for lines_of in own if lines_of
    ]  # some are read while the thread is calling or returning
    if not spans(node, *lines, *seen):
        return 0
    return max(rounds(node, lines), rounds(node, seen))


def _endless(source: SourceFile, node: Node, told: dict[str, Any], function: str) -> EndlessLoop | None:
    found = next((each for each in endless_around(source, node.lineno) if each.first == node.lineno), None)
    if found is not None or isinstance(node, ast.While):
        return found
    # A `for` over what never runs out, by its type.
    name = ast.unparse(node.iter)
    kind = told["state"]["unseen"].get(function, {}).get(name, "")
    return endless_loop(source, node) if kind.startswith(FOREVER) else None


def _within(told: dict[str, Any], file: str, function: str) -> list[str]:
    """The functions, as keys of tokens, whose variables may have a say: the loop's own, and those that it calls."""
    inner = {f"{f}:{name}" for f, name, _ in told["within"]}
    depth = [f"{frame['filename']}:{frame['name']}" for frame in told["frames"]]
    own = f"{file}:{function}"
    below = depth[depth.index(own) :] if own in depth else [own]
    return list(dict.fromkeys([own, *below, *sorted(inner)]))


def _keys(
    state: LoopState, functions: list[str], shown: dict[str, dict[str, Any]]
) -> Iterator[tuple[str, str, Read]]:
    """(function, name) of all that has a say and is told; of the functions that it calls, attributes of `self` and locals."""
    own, *called = functions
    for read in sorted(state.reads):
        for name in (".".join(read[:2]), read[0]):
            if name in shown.get(own, {}):
                yield own, name, read
                break
    for function in called:
        for name in shown.get(function, {}):
            yield function, name, (name,)


def _compared(
    tokens: Tokens, known: _Known, functions: list[str], state: LoopState
) -> tuple[tuple[str, ...], bool]:
    """The names that have a say, and whether any of them has a value that it never had before."""
    names, is_new = [], False
    for function, name, read in _keys(state, functions, tokens):
        early, late = tokens[function][name]
        seen = known.tokens.get((function, name))
        # The first answer's first half only shows what belongs to it; so does that of a function met for the first time.
        new = set(late) - set(early) if seen is None else {*early, *late} - seen
        is_new = is_new or bool(new and (seen is not None or early))
        known.tokens.setdefault((function, name), set()).update(early, late)
        if function == functions[0]:
            names.append(".".join(read[:2]) if "." in name else name)
    return tuple(dict.fromkeys(names)), is_new


def _unseen(told: dict[str, Any], file: str, function: str, state: LoopState) -> bool:
    """Whether something that has a say could not be looked into."""
    unseen, tokens = told["state"]["unseen"], told["state"]["tokens"]
    functions = _within(told, file, function)
    asked = {".".join(each[:2]) for each in state.methods} | {each[0] for each in state.methods}
    for place, name, read in _keys(state, functions, tokens):
        kind = unseen.get(place, {}).get(name, "")
        if not kind or kind.startswith(SEEN_BY_WHAT_COMES) or kind.endswith("iterator"):
            continue
        # Of what is only compared or walked through, the identity and the first level count.
        if kind.startswith(SHALLOW) and place == functions[0] and name not in asked and len(read) < 3:
            continue
        return True
    return False
