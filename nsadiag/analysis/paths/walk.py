"""One rank's recorded path as a tree: frames, the steps in each, and what each step called."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from nsadiag.evidence.rehearsal.paths import LOW, MOST_NUMBER, NUMBER, TENSOR, WHAT, Named, Walked, Word
from nsadiag.evidence.rehearsal.reads import Read

NOBODY = Named(number=0, text="?")


@dataclass(eq=False, slots=True)
class Frame:
    """One call of a function of the user's. `caller` is the step that made it; the root frame has none."""

    code: Named
    caller: Executed | None
    steps: list[Executed] = field(default_factory=list)
    is_open: bool = True  # at the end of the path
    folded: bool = False

    @property
    def file(self) -> str:
        return self.code.file


@dataclass(eq=False, slots=True)
class Executed:
    """One execution of a line."""

    line: int
    index: int  # in the order of the whole path
    frame: Frame
    inner: list[Inner] = field(default_factory=list)

    @property
    def at(self) -> tuple[str, int]:
        return self.frame.file, self.line

    @property
    def frames(self) -> list[Frame]:
        """The user's functions that the line called."""
        return [each for each in self.inner if isinstance(each, Frame)]


@dataclass(eq=False, slots=True)
class Announced:
    """A call of a group, before it is made."""

    text: str
    number: int
    index: int
    step: Executed

    @property
    def op(self) -> str:
        return self.text.partition("\t")[0]

    @property
    def members(self) -> tuple[int, ...]:
        parts = self.text.split("\t")
        return tuple(int(n) for n in parts[2].split(",") if n.isdigit()) if len(parts) > 2 else ()

    @property
    def is_transfer(self) -> bool:
        return self.op in ("send", "recv")

    @property
    def peer(self) -> int | None:
        """The rank that a transfer is for or from; None where any will do."""
        about = [*self.text.split("\t")[3:4], ""][0].split(",")
        within = about[2] if len(about) > 2 else ""
        return self.members[int(within)] if within.isdigit() and int(within) < len(self.members) else None


@dataclass(eq=False, slots=True)
class Exc:
    """An exception that was seen at a step."""

    type: str
    index: int
    step: Executed

    @property
    def ends_an_iterator(self) -> bool:
        """Whether there was nothing more to iterate over: what is wrong is how much there was, and not that it ended."""
        return self.type in ("StopIteration", "StopAsyncIteration")


Inner: TypeAlias = Frame | Announced | Exc


class Walk:
    """The path of one rank."""

    def __init__(self, rank: int, walked: Walked) -> None:
        self.rank = rank
        self.root = Frame(NOBODY, None)
        self.steps: list[Executed] = [Executed(0, 0, self.root)]
        self.root.steps.append(self.steps[0])
        self.calls: list[Announced] = []
        self.stack: list[Frame] = [self.root]
        self._values: dict[tuple[int, str], list[tuple[int, str]]] = defaultdict(list)
        self._visits: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._read(walked)
        self._reopen()

    def _read(self, walked: Walked) -> None:
        name, quiet = "", set[Frame]()  # frames none of whose lines are on record since they were folded
        for word in walked.words:
            what, low = word >> WHAT, word & LOW
            named = walked.names.get(word >> NUMBER & MOST_NUMBER, NOBODY)
            frame = self.stack[-1]
            index = len(self.steps)
            if what == Word.LINE:
                self._step(Executed(low, index, frame))
                quiet.discard(frame)
            elif what == Word.ENTER:
                entered = Frame(named, frame.steps[-1] if frame.steps else None)
                if frame.steps:
                    frame.steps[-1].inner.append(entered)
                self.stack.append(entered)
            elif what == Word.LEAVE and len(self.stack) > 1:
                self.stack.pop().is_open = False
            elif what == Word.NAME:
                name = named.text
            elif what == Word.VALUE:
                self._values[frame.code.number, name].append((index - 1, named.text))
            elif what == Word.FOLDED:
                frame.folded = True
                quiet.add(frame)
            elif frame.steps and what == Word.CALL:
                self.calls.append(Announced(named.text, low, index, frame.steps[-1]))
                frame.steps[-1].inner.append(self.calls[-1])
            elif frame.steps and what == Word.RAISED and frame not in quiet:
                frame.steps[-1].inner.append(Exc(named.text, index, frame.steps[-1]))

    def _step(self, step: Executed) -> None:
        self.steps.append(step)
        step.frame.steps.append(step)
        self._visits[step.at].append(step.index)

    def _reopen(self) -> None:
        """Frames that the exception of the end unwound: the path ends there, it took no turn."""
        frame: Frame | None = self.root
        while frame is not None and frame.steps:
            inner = frame.steps[-1].inner
            if frame is not self.root and not (inner and isinstance(inner[-1], Exc)):
                break
            frame.is_open = True
            frame = next((each for each in reversed(inner) if isinstance(each, Frame)), None)

    @property
    def last(self) -> Executed:
        """The last step: where the path ends."""
        return self.steps[-1]

    def value(self, step: Executed, read: Read) -> str:
        """The value that a name had when the step read it; "" where none was recorded, and of tensors: ranks' differ by right."""
        text = self.text(step, read)
        return "" if text.startswith(TENSOR) else text

    def text(self, step: Executed, read: Read) -> str:
        """The same, also of a tensor with one element."""
        known = self._values.get((step.frame.code.number, ".".join(read)), [])
        at = bisect.bisect_right(known, step.index, key=lambda each: each[0])
        return known[at - 1][1] if at else ""

    def visit(self, step: Executed) -> int:
        """The number of times that the line had been executed, this one included."""
        return bisect.bisect_right(self._visits.get(step.at, []), step.index)

    def visits_of(self, at: tuple[str, int]) -> list[int]:
        """The indices of all executions of a line."""
        return self._visits.get(at, [])

    def visited(self, at: tuple[str, int], number: int) -> Executed | None:
        """The line's execution of that number."""
        known = self._visits.get(at, [])
        return self.steps[known[number - 1]] if 0 < number <= len(known) else None

    def before(self, step: Executed, *, within: Frame | None = None) -> Iterator[Executed]:
        """Steps before this one, the nearest first."""
        if within is None:
            yield from (self.steps[n] for n in range(step.index - 1, 0, -1))
        else:
            at = bisect.bisect_left(within.steps, step.index, key=lambda each: each.index)
            yield from reversed(within.steps[:at])
