"""Code objects of the user's: how control flows in each, what its lines read, and how often it turned where."""

from __future__ import annotations

import dis
import functools
from types import CodeType
from typing import Any

from nsadiag.evidence.rehearsal.reads import Read
from nsadiag.evidence.ring.turns import Flow, Row, Way

OTHER: Any = object()  # a value that is no plain one
SUSPENDS = 0x20 | 0x80 | 0x200  # inspect.CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
OPTIMIZED = 1  # inspect.CO_OPTIMIZED: its names have places of their own
MOST_OTHERS = 3  # times that a name is seen to be no plain value
MOST_BOUND = 200  # texts of one name, each of which is written to the disk
_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "INTERPRETER_EXIT"})
_APPENDS = frozenset({"LIST_APPEND", "SET_ADD", "MAP_ADD"})
_BRANCHES = ("POP_JUMP_", "FOR_ITER")


MOST_OF_A_ROUND = 2000  # times that a branch turns between two calls of a group


class Site:
    """A place of a code object's, by which events come, and how many more of them until it is looked at."""

    __slots__ = ("before", "given", "left", "round", "since_ns", "slots", "word")

    def __init__(self, word: int) -> None:
        self.word = word
        self.left = self.given = MOST_OF_A_ROUND
        self.before = self.since_ns = 0
        self.round = -1
        # What is read on the way here, by where the code's last turn led.
        self.slots: dict[int, list[Slot]] = {}

    @property
    def total(self) -> int:
        """The number of its events."""
        return self.given - self.left


class Unit:
    """One code object."""

    __slots__ = (
        "at", "code", "depth", "dropped", "ends", "entry", "is_alone", "meets", "number", "quiet", "seen", "sites", "slots", "way",
    )  # fmt: skip

    def __init__(self, code: CodeType, number: int, flow: list[Row], quiet: frozenset[int]) -> None:
        self.code, self.number, self.way = code, number, Way(flow)
        self.quiet = quiet  # branches that are not recorded
        self.entry = Site(0)
        # Of branches and of what leaves a frame, by offset.
        self.sites: dict[int, Site] = {}
        self.ends: dict[int, Site] = {}
        self.at = 0  # where its last turn led, in whatever frame
        self.depth = 0  # frames of it that are open
        # Whether there was never more than one frame at a time: then what the code does not bind is what it was as the frame began.
        self.is_alone = not code.co_flags & SUSPENDS
        self.meets = False  # whether a call of a group began within a frame of it
        self.dropped = False
        self.slots: dict[tuple[int, Read], Slot] = {}  # by line and name
        self.seen: dict[Read, Seen] = {}

    @property
    def tells_its_calls_alone(self) -> bool:
        """Whether neither a branch nor a value of it is on record."""
        return not self.sites and all(slot.seen.is_given_up for slot in self.slots.values())

    def share(self) -> None:
        """There are two frames of it at a time."""
        self.is_alone = False
        for site in (*self.sites.values(), *self.ends.values(), self.entry):
            site.slots.clear()

    def give_up(self, seen: Seen) -> None:
        """Takes a name out of all that is read."""
        for site in (*self.sites.values(), *self.ends.values(), self.entry):
            for slots in site.slots.values():
                slots[:] = [slot for slot in slots if slot.seen is not seen]


class Seen:
    """The last value of a name of a code object."""

    __slots__ = ("bound", "last", "others", "text")

    def __init__(self) -> None:
        self.last: object = OTHER
        self.text = 0
        self.others = 0  # in a row that are no plain value
        self.bound = 0  # texts that it has had

    @property
    def is_given_up(self) -> bool:
        return self.others >= MOST_OTHERS or self.bound > MOST_BOUND


class Slot:
    """A name that a line reads."""

    __slots__ = ("is_bound_once", "number", "read", "seen", "simple")

    def __init__(self, number: int, read: Read, seen: Seen, code: CodeType) -> None:
        self.number, self.read, self.seen = number, read, seen
        is_global = not code.co_flags & OPTIMIZED or read[0] not in (
            *code.co_varnames, *code.co_cellvars, *code.co_freevars,
        )  # fmt: skip
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        self.is_bound_once = len(read) == 1 and read[0] in arguments and read[0] not in _bound(code)
        self.simple = read[0] if is_global and len(read) == 1 and code.co_name == "<module>" else ""


@functools.lru_cache(maxsize=64)
def _bound(code: CodeType) -> frozenset[str]:
    """Names that the code binds itself, or that functions within it may."""
    stores = (
        each.argval
        for each in dis.get_instructions(code)
        if each.opname.startswith(("STORE_FAST", "DELETE_FAST"))
    )
    found = (name for each in stores for name in (each if isinstance(each, tuple) else (each,)))
    return frozenset((*found, *code.co_cellvars))


def flow_of(code: CodeType) -> tuple[list[Row], frozenset[int]]:
    """The rows of a code object, and the branches of its comprehensions: a table of a million rows turns as often."""
    instructions = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    lines = [line or 0 for begin, end, line in code.co_lines() for _ in range(begin, end, 2)]
    head = next((n for n, each in enumerate(instructions) if each.opname == "RESUME"), -1)
    furthest: dict[int, int] = {}
    for each in instructions:
        if each.opname.startswith("JUMP_BACKWARD"):
            furthest[each.argval] = each.offset
    appends = [each.offset for each in instructions if each.opname in _APPENDS and (each.arg or 0) > 1]
    building = [loop for each in appends if (loop := _innermost(each, furthest))]
    quiet = frozenset(
        each.offset // 2
        for each in instructions
        if each.opname.startswith(_BRANCHES) and any(begin <= each.offset <= end for begin, end in building)
    )
    targets = {
        each.argval for each in instructions if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs
    }
    rows: list[Row] = []
    last = -1
    for number, each in enumerate(instructions):
        unit = each.offset // 2
        line = lines[unit] if number > head and unit < len(lines) else 0
        kind, target = _kind(each, quiet)
        if kind != Flow.ON or line != last or each.offset in targets or (rows and rows[-1][2] != Flow.ON):
            rows.append((unit, line, kind, target))
            last = line
    return rows, quiet


def _innermost(offset: int, loops: dict[int, int]) -> tuple[int, int] | None:
    around = [(begin, end) for begin, end in loops.items() if begin <= offset <= end]
    return min(around, key=lambda loop: loop[1] - loop[0], default=None)


def _kind(each: dis.Instruction, quiet: frozenset[int]) -> tuple[int, int]:
    if each.opname in _ENDS:
        return Flow.END, 0
    if each.opcode not in dis.hasjrel and each.opcode not in dis.hasjabs:
        return Flow.ON, 0
    target = int(each.argval) // 2
    if each.opname.startswith(_BRANCHES):
        return (Flow.EITHER if each.offset // 2 in quiet else Flow.BRANCH), target
    if each.opname == "SEND":
        return Flow.EITHER, target
    return (Flow.AWAIT if each.opname == "JUMP_BACKWARD_NO_INTERRUPT" else Flow.JUMP), target
