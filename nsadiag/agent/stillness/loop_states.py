"""The loop that a rank does not leave, by what has a say in its end: whether any of that still gets anywhere.

Unlike all variables of a loop, these are few: a counter, a sum or a log may go on growing in a loop that nothing ends.
A value that makes progress never comes back to one that it has left; one that draws, or walks in a circle, does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nsadiag.agent.stillness.loop_introspection import rounds
from nsadiag.evidence.rehearsal.reads import Read
from nsadiag.source.loop_exits import Frame, source_of
from nsadiag.source.model import Loop as Node
from nsadiag.source.model import SourceFile, spans
from nsadiag.source.patterns.endings import EndlessLoop, endless_around, endless_loop
from nsadiag.source.patterns.loop_state import (
    LoopState,
    inner_loops,
    is_bounded,
    iterated,
    state_of,
    stores_into,
    written_in,
)

FEWEST_ROUNDS = 3  # in all answers together: else one round, slow as it may be, would pass for many
RETURNS = (
    0.25  # of the values that a name goes on to: with as many that have been there before it gets nowhere
)
FIRST_ITERATOR = ".0"  # of a comprehension, which is made anew each time
FEWEST_FOLLOWED = 8  # rounds, line by line, in each half
MOST_STACKS = 200
FOREVER = ("itertools.cycle", "itertools.count", "itertools.repeat")
# Kinds of values of which a part is unseen, and that part counts only where something is called on the value.
SHALLOW = "object "
SEEN_BY_WHAT_COMES = ("random.", "numpy.random.", "torch._C.Generator", "itertools.")
SCALAR = "="  # a token of a number, a text or None begins with it

Tokens = Mapping[str, Mapping[str, Sequence[str]]]  # by function and name, in order, none twice in a row


@dataclass(frozen=True, kw_only=True)
class Stays:
    """A loop that goes round while nothing that has a say in its end gets anywhere."""

    file: str
    function: str
    line: int
    lines: list[int]
    text: str  # the loop's own statement
    conditions: tuple[str, ...]
    names: tuple[str, ...]  # that have a say
    seconds: float  # since one of them last got somewhere
    constant: bool  # each had one value only
    recurs: int = (
        0  # rounds that were followed line by line until all of these came back to what they had been
    )


class Told(NamedTuple):
    """One answer of a rank (worker/introspection/loop_rounds.py)."""

    frames: list[tuple[str, str, list[int]]]  # file, function and lines, outermost first
    within: frozenset[str]  # functions that were seen to run below, as keys of the tokens
    tokens: Tokens
    unseen: Mapping[str, Mapping[str, str]]  # types of what could not be seen in full, by function and name
    # Where the rank's lines are traced: of each function in order, the line and the tokens that had changed.
    rows: Mapping[str, Sequence[tuple[int, Mapping[str, str]]]] = {}
    values: Mapping[str, Mapping[str, Sequence[Sequence[str]]]] = {}  # of the first half, and of the second
    closed: bool = False  # nothing but these lines could change what they read


def told_by(answer: Any) -> Told | None:
    """The answer as a value; None where it is none, as of a rank that failed to answer."""
    try:
        return Told(
            frames=[(str(f["filename"]), str(f["name"]), list(map(int, f["lines"]))) for f in answer["frames"]],
            within=frozenset(f"{file}:{name}" for file, name, _ in answer["within"]),
            tokens=dict(answer["state"]["tokens"]),
            unseen=dict(answer["state"]["unseen"]),
            rows=dict(answer.get("rows", {})),
            values=dict(answer["values"]),
            closed=bool(answer.get("closed")),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError):
        return None


class _Candidate(NamedTuple):
    file: str
    function: str
    lines: list[int]
    turns: int
    node: Node
    loop: EndlessLoop
    state: LoopState


@dataclass
class _Series:
    """All values of one name."""

    seen: set[str] = field(default_factory=set)
    last: str | None = None

    def takes(self, values: Sequence[str]) -> bool:
        """Whether these, the newest, got somewhere: most of those that it went on to had never been there."""
        if self.last is None:
            half = len(values) // 2
            # The first answer's first half only shows what belongs to it.
            self.takes_in(values[:half] or values[:1])
            values = values[half:]
        went_on = set(values[1:] if values[:1] == [self.last] else values)
        new = went_on - self.seen
        self.takes_in(values)
        return bool(new) and len(went_on - new) < RETURNS * len(went_on)

    def takes_in(self, values: Sequence[str]) -> None:
        self.seen.update(values)
        self.last = values[-1] if values else self.last


@dataclass
class _Known:
    at: tuple[str, int]
    since: float
    answers: int = 0
    turns: int = 0
    series: dict[tuple[str, str], _Series] = field(default_factory=dict)
    context: dict[tuple[str, str], str] = field(default_factory=dict)


class LoopStates:
    """Remembers from look to look what the ranks have told."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._stacks: dict[int, list[tuple[Frame, ...]]] = {}

    def forget(self) -> None:
        """There was progress: a loop that is met later is another one."""
        self._known.clear()
        self._stacks.clear()

    def has_answered(self, rank: int) -> bool:
        """Whether it did in this silence, so that it does not keep its interpreter to itself."""
        return rank in self._stacks

    def of(self, rank: int, told: Told, stacks: Sequence[tuple[Frame, ...]]) -> Stays | None:
        """By the newest answer of the rank; None as long as nothing speaks for a loop without an end.

        `stacks` were seen of it from outside, in order: its own interpreter answers at few of a loop's lines.
        """
        seen = self._stacks[rank] = [*self._stacks.get(rank, []), *stacks][-MOST_STACKS:]
        found = _candidate(told, seen)
        if found is None:
            return None  # chance, as often as not: a loop that was left shows by another, or by an event
        known, context = self._known.get(rank), _context(told, found)
        if known is None or known.at != (found.file, found.loop.first) or _differ(known.context, context):
            known = self._known[rank] = _Known(at=(found.file, found.loop.first), since=time.monotonic())
        known.context |= context
        names, moved = _taken(told.tokens, known, _within(told, found.file, found.function), found.state)
        known.turns = max(known.turns, found.turns)
        known.answers += 1
        if moved:
            known.since = time.monotonic()
        recurs = _recurs(told, found)
        if known.turns < FEWEST_ROUNDS or (known.answers < 2 and not recurs):
            return None
        return Stays(
            file=found.file, function=found.function, line=found.loop.first, lines=sorted(set(found.lines)),
            text=found.loop.text, conditions=found.state.conditions, names=names,
            seconds=time.monotonic() - known.since, constant=all(len(each.seen) == 1 for each in known.series.values()),
            recurs=recurs,
        )  # fmt: skip


def worth_asking(frames: list[Frame]) -> bool:
    """Whether any of these lines is in a loop that may go on for ever."""
    return any(
        not is_bounded(node)
        for file, _, line in frames
        if (source := source_of(file)) is not None
        for node in source.loops_around(line)
    )


def _candidate(told: Told, stacks: Sequence[tuple[Frame, ...]]) -> _Candidate | None:
    """The outermost loop that goes round, if it has no end of its own and all is known that has a say in its end.

    Whatever goes round within it comes to its end each time.
    """
    for file, function, lines in told.frames:
        source = source_of(file)
        for node in source.loops_around(lines[-1])[::-1] if source is not None else ():
            turns = _turns(node, told, (file, function, lines), stacks)
            if source is None or not turns:
                continue
            found = _endless(source, node, told, f"{file}:{function}")
            if found is None:
                return None
            state = state_of(source, found, node)
            unknown = state.asks or _unseen(told, file, function, state)
            return None if unknown else _Candidate(file, function, lines, turns, node, found, state)
    return None


def _turns(
    node: Node, told: Told, at: tuple[str, str, list[int]], stacks: Sequence[tuple[Frame, ...]]
) -> int:
    """The number of times that the loop was seen to go round; none where it was left.

    By its lines, or by the values of the names that it alone writes in each round.
    """
    file, function, lines = at
    own = ([line for f, name, line in s if f == file and name.rpartition(".")[2] == function] for s in stacks)
    seen = [
        lines_of[0] for lines_of in own if lines_of
    ]  # some are read while the thread is calling or returning
    if not spans(node, *lines, *seen):
        return 0
    inner = {name for each in inner_loops(node) for name in written_in(each)}
    tokens = told.tokens.get(f"{file}:{function}", {})
    changes = [len(tokens.get(".".join(each), ())) - 1 for each in written_in(node) - inner]
    return max(rounds(node, lines), rounds(node, seen), *changes, 0)


def _recurs(told: Told, found: _Candidate) -> int:
    """The rounds that were followed until all that has a say came back, together, to what it had been: from there on they are the same again.

    0 where it did not, or where something else may have a say: an iterator's position, a random number, another thread.
    """
    own = f"{found.file}:{found.function}"
    rows = told.rows.get(own, ())
    if not (told.closed and rows) or iterated(found.node) or found.state.remainders:
        return 0
    names = [name for _, name, _ in _keys(found.state, [own], told.tokens)]
    unseen = [kind for name in names if (kind := told.unseen.get(own, {}).get(name))]
    if unseen and not (_changes_names_alone(found) and all(kind.startswith(SHALLOW) for kind in unseen)):
        return 0
    called = [each for each in _within(told, found.file, found.function) if each != own]
    if any(_keeps_something(told, each) for each in called):
        return 0
    held: dict[str, str] = {}
    states: list[tuple[str, ...]] = []
    for line, changed in rows:
        held.update(changed)
        if line == found.loop.head:
            states.append(tuple(held.get(name, "") for name in names))
    half = len(states) // 2
    returns = half >= FEWEST_FOLLOWED and set(states[half:]) <= set(states[:half])
    return len(states) if returns else 0


def _changes_names_alone(found: _Candidate) -> bool:
    """Whether the loop goes from object to object, and does nothing to any of them."""
    return not (stores_into(found.node) or found.state.methods or found.state.functions)


def _keeps_something(told: Told, function: str) -> bool:
    """Whether a function that the loop calls may hold more in one round than it did in the ones before: a global, what is kept in a default."""
    if any(name != FIRST_ITERATOR for name in told.unseen.get(function, {})):
        return True
    return any(set(late) - set(early) for early, late in told.values.get(function, {}).values())


def _endless(source: SourceFile, node: Node, told: Told, function: str) -> EndlessLoop | None:
    found = next((each for each in endless_around(source, node.lineno) if each.first == node.lineno), None)
    if found is not None:
        return found
    # A `for` over what never runs out, by its type.
    kind = told.unseen.get(function, {}).get(iterated(node), "")
    return endless_loop(source, node) if kind.startswith(FOREVER) else None


def _context(told: Told, found: _Candidate) -> dict[tuple[str, str], str]:
    """Numbers and texts of the loop's callers, and of its own function as far as the loop leaves them alone.

    Where one of these changes, the loop was left and entered anew.
    """
    written = {".".join(each) for each in written_in(found.node)}
    own = f"{found.file}:{found.function}"
    outer = [f"{file}:{name}" for file, name, _ in told.frames]
    shown: Tokens = told.tokens
    return {
        (function, name): values[-1]
        for function in outer[: outer.index(own) + 1]
        for name, values in shown.get(function, {}).items()
        if values and values[-1].startswith(SCALAR) and "." not in name and not (function == own and name in written)
    }  # fmt: skip


def _differ(before: Mapping[tuple[str, str], str], now: Mapping[tuple[str, str], str]) -> bool:
    return any(before.get(key, value) != value for key, value in now.items())


def _within(told: Told, file: str, function: str) -> list[str]:
    """The functions, as keys of tokens, whose variables may have a say: the loop's own, and those that it calls."""
    depth = [f"{file}:{name}" for file, name, _ in told.frames]
    own = f"{file}:{function}"
    return list(dict.fromkeys([own, *depth[depth.index(own) :], *sorted(told.within)]))


def _keys(
    state: LoopState, functions: list[str], shown: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, str, Read]]:
    """(function, name) of all that has a say and is told: in the loop's own function, and all of those that it calls."""
    own, *called = functions
    for read in sorted(state.reads):
        name = next((each for each in (".".join(read[:2]), read[0]) if each in shown.get(own, {})), None)
        if name is not None:
            yield own, name, read
    for function in called:
        for name in shown.get(function, {}):
            yield function, name, (name,)


def _taken(
    tokens: Tokens, known: _Known, functions: list[str], state: LoopState
) -> tuple[tuple[str, ...], bool]:
    """The names that have a say, and whether any of them got somewhere."""
    names, moved = [], False
    for function, name, _ in _keys(state, functions, tokens):
        series = known.series.setdefault((function, name), _Series())
        moved = series.takes(tokens[function][name]) or moved
        if function == functions[0]:
            names.append(name)
    return tuple(dict.fromkeys(names)), moved


def _unseen(told: Told, file: str, function: str, state: LoopState) -> bool:
    """Whether something that has a say could not be looked into."""
    unseen, tokens = told.unseen, told.tokens
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
