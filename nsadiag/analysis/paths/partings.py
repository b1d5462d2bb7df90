"""Two ranks' paths side by side: each parting, and the first behind which their calls never match again."""

from __future__ import annotations

import dataclasses
import difflib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from nsadiag.analysis.paths.nesting import Node, Rounds, first_step, nested, steps_in
from nsadiag.analysis.paths.walk import Announced, Exc, Executed, Frame, Inner, Walk
from nsadiag.source.model import SourceModel
from nsadiag.source.patterns.statements import LoopLines, loops_of

T = TypeVar("T")
Pair = tuple[Executed, Executed]


@dataclass(eq=False, kw_only=True)
class Parting:
    """Two ranks that did not do the same after `at`, the last step that both made."""

    at: Pair
    sides: tuple[list[Executed], list[Executed]]  # of the frame itself
    inner: tuple[list[Inner], list[Inner]] = field(default_factory=lambda: ([], []))
    then: tuple[Executed | None, Executed | None]  # the next step of each
    loop: LoopLines | None = None
    rounds: tuple[int, int] | None = None  # where one made more iterations than the other
    by: Parting | None = None  # in the last common iteration, by which one side left the loop

    @cached_property
    def announced(self) -> tuple[list[Announced], list[Announced]]:
        """The calls that each side made before they met again."""
        a, b = (list(announced_in(s, i)) for s, i in zip(self.sides, self.inner, strict=True))
        return a, b

    @property
    def index(self) -> int:
        return self.at[0].index

    def holds(self, side: int, step: Executed) -> bool:
        """Whether the step is one of those that only this side made."""
        own = self.sides[side]
        if own and own[0].index <= step.index:
            last = own[-1]
            return step.index <= last.index or any(
                f.steps and f.steps[-1].index >= step.index for f in last.frames
            )
        return any(isinstance(each, Frame) and _within(each, step) for each in self.inner[side])

    @property
    def raised(self) -> tuple[Exc | None, Exc | None]:
        """The exception that only one side saw."""
        a, b = (next((each for each in own if isinstance(each, Exc)), None) for own in self.inner)
        return a, b


def _within(frame: Frame, step: Executed) -> bool:
    outer: Frame | None = step.frame
    while outer is not None and outer is not frame:
        outer = outer.caller.frame if outer.caller else None
    return outer is frame


def announced_in(steps: Sequence[Executed], inner: Sequence[Inner]) -> Iterator[Announced]:
    """The calls of a group within these, in their order."""
    for each in (*inner, *(each for step in steps for each in step.inner)):
        if isinstance(each, Announced):
            yield each
        elif isinstance(each, Frame):
            yield from announced_in(each.steps, ())


@dataclass(frozen=True, kw_only=True)
class Compared:
    """All partings of two ranks in their order, and the one behind which their calls no longer match."""

    walks: tuple[Walk, Walk]
    partings: tuple[Parting, ...]
    decisive: Parting | None  # by control
    drifted: Parting | None  # the first in which one side alone made calls, wherever the other made them
    unlike: tuple[Announced, Announced] | None  # the first calls at the same place that are not alike
    rounds: tuple[int, int] | None = None  # of one rank, where it is compared with itself
    head: tuple[str, int] | None = None  # the line with which each of these begins

    @property
    def sides(self) -> tuple[str, str]:
        """Both sides, as a sentence names them."""
        a, b = (f"rank {walk.rank}" for walk in self.walks)
        return (f"{a} (round {self.rounds[0]})", f"{b} (round {self.rounds[1]})") if self.rounds else (a, b)


class Alignment:
    """Compares two walks, frame by frame."""

    def __init__(self, code: SourceModel, a: Walk, b: Walk, rounds: tuple[int, int] | None = None) -> None:
        self._code, self._walks, self._own = code, (a, b), rounds
        self._loops: dict[str, Sequence[LoopLines]] = {}
        self._found: list[Parting | tuple[Announced, Announced]] = []

    def compared(self) -> Compared:
        a, b = self._walks
        self._frames(a.root, b.root, (True, True))
        return self._concluded()

    def of_rounds(self, a: list[Node], b: list[Node], ends: tuple[bool, bool]) -> Compared:
        """Two iterations of one loop, of which the path may end in the first."""
        heads = first_step(a), first_step(b)
        if not heads[0] or not heads[1]:
            return self._concluded()
        self._lists(a, b, ends, (heads[0], heads[1]))
        return dataclasses.replace(self._concluded(), head=heads[0].at)

    def _concluded(self) -> Compared:
        return Compared(
            walks=self._walks,
            partings=self._partings,
            decisive=self._decisive(),
            drifted=next((p for p in self._partings if self._is_drift(p)), None),
            unlike=self._unlike(),
            rounds=self._own,
        )

    @property
    def _partings(self) -> tuple[Parting, ...]:
        return tuple(each for each in self._found if isinstance(each, Parting))

    def _is_drift(self, parting: Parting) -> bool:
        made = [bool(self._counted(side)) for side in parting.announced]
        return made.count(True) == 1

    def _decisive(self) -> Parting | None:
        """Calls go into a queue for each rank, and what is alike in both cancels out."""
        queues: tuple[deque[str], deque[str]] = (deque(), deque())
        first: Parting | None = None
        for each in self._found:
            if isinstance(each, Parting):
                sides = each.announced
                first = first or (each if any(map(self._counted, sides)) else None)
            else:
                sides = ([each[0]], [each[1]])
            for queue, calls in zip(queues, sides, strict=True):
                queue.extend(self._counted(calls))
            while queues[0] and queues[1] and queues[0][0] == queues[1][0]:
                queues[0].popleft()
                queues[1].popleft()
            if not queues[0] and not queues[1]:
                first = None
        return first

    def _counted(self, calls: Sequence[Announced]) -> list[str]:
        """Collectives of groups that hold both: transfers differ by right, but not from those of the rank's own rounds."""
        if self._own:
            return ["\t".join(each.text.split("\t")[:3]) for each in calls if each.is_transfer]
        both = {walk.rank for walk in self._walks}
        return [each.text for each in calls if not each.is_transfer and both <= set(each.members)]

    def _unlike(self) -> tuple[Announced, Announced] | None:
        pairs = (each for each in self._found if isinstance(each, tuple))
        own = self._own is not None
        return next(
            (p for p in pairs if p[0].is_transfer == own and _said(p[0], own) != _said(p[1], own)), None
        )

    # -- the comparison -----------------------------------------------------------------------------

    def _frames(self, a: Frame, b: Frame, ends: tuple[bool, bool]) -> None:
        if a.folded or b.folded:
            return
        if a.file not in self._loops:
            self._loops[a.file] = loops_of(self._code.file(a.file))
        loops = self._loops[a.file]
        head = (a.steps[0], b.steps[0]) if a.steps and b.steps else None
        if head:
            self._lists(
                nested(a.steps, loops),
                nested(b.steps, loops),
                (ends[0] and a.is_open, ends[1] and b.is_open),
                head,
            )

    def _lists(self, a: list[Node], b: list[Node], ends: tuple[bool, bool], at: Pair) -> None:
        """`ends`: whether the path of each ends within the list."""
        for op, i, j, k, n in _opcodes([_key(x) for x in a], [_key(x) for x in b]):
            if op == "equal":
                for x, y in zip(a[i:j], b[k:n], strict=True):
                    at = self._nodes(x, y, (ends[0] and x is a[-1], ends[1] and y is b[-1]))
                continue
            own = (a[i:j], b[k:n])
            over = (ends[0] and j == len(a), ends[1] and n == len(b))
            if (not own[0] and over[0]) or (not own[1] and over[1]):
                continue  # one is only behind
            then = (first_step(a[i:]), first_step(b[k:]))
            self._found.append(
                Parting(at=at, sides=(list(steps_in(own[0])), list(steps_in(own[1]))), then=then)
            )

    def _nodes(self, x: Node, y: Node, ends: tuple[bool, bool]) -> Pair:
        """Goes into what is equal; the last steps of both."""
        if isinstance(x, Executed) and isinstance(y, Executed):
            self._inner(x, y, ends)
            return x, y
        assert isinstance(x, Rounds) and isinstance(y, Rounds)
        self._rounds(x, y, ends)
        last = [list(steps_in([each]))[-1] for each in (x, y)]
        return last[0], last[1]

    def _rounds(self, x: Rounds, y: Rounds, ends: tuple[bool, bool]) -> None:
        common = min(len(x.each), len(y.each))
        before = len(self._found)
        for n in range(common):
            before = len(self._found)
            own = (x.each[n], y.each[n])
            heads = [first_step(each) for each in own]
            assert heads[0] and heads[1]
            self._lists(
                *own,
                (ends[0] and n == len(x.each) - 1, ends[1] and n == len(y.each) - 1),
                (heads[0], heads[1]),
            )
        if (len(x.each) > common and not ends[1]) or (len(y.each) > common and not ends[0]):
            rest = [[step for one in each.each[common:] for step in steps_in(one)] for each in (x, y)]
            # What one side did in the last iteration that both began, in this very frame, led it out of the loop.
            within = [
                p for p in self._found[before:]
                if isinstance(p, Parting) and p.at[0].frame is _frame_of(x) and p.rounds is None
            ]  # fmt: skip
            heads = [first_step(each.each[common - 1]) for each in (x, y)]
            assert heads[0] and heads[1]
            by = within[-1] if within else None
            self._found.append(
                Parting(
                    at=(heads[0], heads[1]), sides=(rest[0], rest[1]), loop=x.loop, rounds=(x.made, y.made), by=by,
                    then=(rest[0][0] if rest[0] else None, rest[1][0] if rest[1] else None),
                )
            )  # fmt: skip

    def _inner(self, x: Executed, y: Executed, ends: tuple[bool, bool]) -> None:
        a, b = x.inner, y.inner
        for op, i, j, k, n in _opcodes([_inner_key(each) for each in a], [_inner_key(each) for each in b]):
            if op == "equal":
                for p, q in zip(a[i:j], b[k:n], strict=True):
                    if isinstance(p, Frame) and isinstance(q, Frame):
                        self._frames(p, q, (ends[0] and p is a[-1], ends[1] and q is b[-1]))
                    elif isinstance(p, Announced) and isinstance(q, Announced):
                        self._found.append((p, q))
                continue
            own = (a[i:j], b[k:n])
            over = (ends[0] and j == len(a), ends[1] and n == len(b))
            if (not own[0] and over[0]) or (not own[1] and over[1]):
                continue
            self._found.append(
                Parting(
                    at=(x, y), sides=([], []), inner=own, then=(_first_inner(own[0]), _first_inner(own[1]))
                )
            )


def _said(call: Announced, without_tag: bool) -> str:
    return transfer_of(call) if without_tag else call.text


def transfer_of(call: Announced) -> str:
    """Operation, group, peer and sizes of a transfer: its tag may number it."""
    parts = call.text.split("\t")
    peer = parts[3].split(",")[2] if len(parts) > 3 and parts[3].count(",") >= 2 else ""
    return "\t".join((*parts[:3], peer, *parts[4:]))


def _frame_of(rounds: Rounds) -> Frame | None:
    step = first_step([rounds])
    return step.frame if step else None


def _first_inner(inner: Sequence[Inner]) -> Executed | None:
    return next((f.steps[0] for f in inner if isinstance(f, Frame) and f.steps), None)


def _key(node: Node) -> tuple[str, int]:
    return ("loop", node.loop.first) if isinstance(node, Rounds) else ("step", node.line)


def _inner_key(each: Inner) -> tuple[str, ...]:
    if isinstance(each, Frame):
        return "frame", each.code.file, each.code.text, str(each.code.line)
    return ("call", each.op) if isinstance(each, Announced) else ("raised", each.type)


def _opcodes(a: Sequence[T], b: Sequence[T]) -> list[tuple[str, int, int, int, int]]:
    if a == b:
        return [("equal", 0, len(a), 0, len(b))]
    return list(difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes())
