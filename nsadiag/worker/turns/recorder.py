"""Records the turns of the main thread through the user's code, by sys.monitoring.

Only code of the user's is instrumented, each object as it first runs: of all other code the first call of each function alone is
seen. A word in the middle of a training step costs some 3 us, as it comes out of cold caches: so many may be written at once, and then
only so many a second (`Allowance`). Whatever goes beyond is given up, what says least of where ranks meet first.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from _thread import get_ident
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from types import CodeType, FrameType
from typing import Any

from nsadiag.evidence.rehearsal.paths import NUMBER, WHAT
from nsadiag.evidence.rehearsal.reads import Read, handled_ends, reads_by_line
from nsadiag.evidence.ring.turns import BANK, FRAME, HALF, HEADER, ROOM, UNWOUND, Turn
from nsadiag.worker.interruptions import pass_on
from nsadiag.worker.place import is_user_code, users_files
from nsadiag.worker.recorder import Recorder
from nsadiag.worker.turns.allowance import WINDOW, Allowance
from nsadiag.worker.turns.box import Box
from nsadiag.worker.turns.lookup import plain_value
from nsadiag.worker.turns.units import MOST_OF_A_ROUND, OTHER, Seen, Site, Slot, Unit, flow_of

TOOLS = (4, 3)  # numbers that no kind of tool has by convention
MOST_SOURCE = 1 << 20  # bytes of a file
MOST_UNITS = 2000
MOST_CODE = 1 << HALF  # code units
PER_S = 5000  # times that a branch turns in a second, behind which it is given up
MOST_HOPS = range(8)  # frames of a framework between a function of the user's and what it calls
MOST_FRAMES = 1000
NO_EXCEPTIONS = (StopIteration, StopAsyncIteration, GeneratorExit)
# What Dynamo makes of a function stands in its file.
COMPILED = ("torch_dynamo_resume", "__compiled_fn", "__resume_at")

START, HELD, AT, BRANCH, LEFT, HANDLED, RAISED, CALL, TEXT, INT, FLOAT, DROPPED, UNREAD = (
    int(each) << WHAT for each in Turn
)


class TurnRecorder:
    """The callbacks of one process, and what they share."""

    def __init__(self, rank: Recorder) -> None:
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
        self._tool = self._free_tool()
        try:
            self._box = Box(rank.directory.path_words, rank.directory.path_names)
        except BaseException:
            self._monitoring.free_tool_id(self._tool)
            raise
        self._words = self._box.words
        self._thread = threading.main_thread().ident
        self._pid = os.getpid()
        self._units: dict[int, Unit] = {}  # by address: a unit keeps its code
        self._sources: dict[str, tuple[dict[int, tuple[Read, ...]], frozenset[int]]] = {}
        self._seen: list[Seen] = []
        self._count, self._limit = 0, BANK
        self._round = 0  # calls of groups so far
        self._next_look, self._allowance = WINDOW, Allowance(monotonic_ns())
        self._plain = {id(value): self._box.text(repr(value)) for value in (None, True, False)}

    def _free_tool(self) -> int:
        for number in TOOLS:
            try:
                self._monitoring.use_tool_id(number, "nsadiag")
            except ValueError:
                continue
            return number
        held = ", ".join(str(self._monitoring.get_tool(number)) for number in TOOLS)
        raise RuntimeError(f"other tools hold the places that are free in sys.monitoring: {held}")

    # -- beginning and end ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Records from here on, with the frames that are on the stack."""
        events, tool = self._monitoring.events, self._tool
        turned = (
            (events.BRANCH_LEFT, events.BRANCH_RIGHT) if hasattr(events, "BRANCH_LEFT") else (events.BRANCH,)
        )
        callbacks: dict[int, Callable[..., Any]] = {
            events.PY_START: self._on_start, events.PY_RESUME: self._on_resume, events.PY_RETURN: self._on_return,
            events.PY_YIELD: self._on_return, events.PY_UNWIND: self._on_unwind, events.RAISE: self._on_raise,
            events.EXCEPTION_HANDLED: self._on_handled, **dict.fromkeys(turned, self._on_branch),
        }  # fmt: skip
        self._local = events.PY_RETURN | events.PY_YIELD | events.PY_RESUME | sum(turned)
        for event, callback in callbacks.items():
            self._monitoring.register_callback(tool, event, callback)
        for frame in self._frames(sys._getframe(1)):
            self._unit(frame.f_code)
        self._monitoring.set_events(
            tool, events.PY_START | events.PY_UNWIND | events.RAISE | events.EXCEPTION_HANDLED
        )
        self._hold(sys._getframe(1))

    def end(self) -> None:
        """Gives back all that was taken: also in a child that was forked, whose turns are not the rank's."""
        monitoring, tool = self._monitoring, self._tool
        if monitoring.get_tool(tool) != "nsadiag":
            return
        monitoring.set_events(tool, 0)
        for unit in self._units.values():
            monitoring.set_local_events(tool, unit.code, 0)
        events = monitoring.events
        for name in ("PY_START", "PY_RESUME", "PY_RETURN", "PY_YIELD", "PY_UNWIND", "RAISE", "EXCEPTION_HANDLED", "BRANCH",
                     "BRANCH_LEFT", "BRANCH_RIGHT"):  # fmt: skip
            if hasattr(events, name):
                monitoring.register_callback(tool, getattr(events, name), None)
        monitoring.free_tool_id(tool)

    def _frames(self, frame: FrameType | None) -> list[FrameType]:
        """Those of the user's on a stack, the outermost first."""
        found: list[FrameType] = []
        while frame is not None and len(found) < MOST_FRAMES:
            if self._is_recorded(frame.f_code):
                found.append(frame)
            frame = frame.f_back
        return found[::-1]

    def _hold(self, innermost: FrameType | None) -> None:
        """The stack, as a bank begins."""
        for frame in self._frames(innermost):
            unit = self._units.get(id(frame.f_code))
            if unit is not None and not unit.dropped:
                self._put(HELD | unit.number << NUMBER | frame.f_lasti // 2)
                given: dict[Read, Slot] = {}
                self._arguments(unit, given)
                self._values(unit, [*given.values()], frame)

    # -- words ----------------------------------------------------------------------------------------

    def _put(self, word: int) -> None:
        count = self._count
        self._words[HEADER + count % ROOM] = word
        self._words[1] = self._count = count + 1

    def _look(self, frame: FrameType) -> None:
        """Now and then: a full bank, and what the whole costs."""
        if self._count >= self._limit:
            self._limit = self._box.turn_bank(self._count)
            for seen in self._seen:
                seen.last = OTHER
            self._hold(frame)
        for unit, offset in self._allowance.beyond(self._count, monotonic_ns(), self._units.values()):
            if offset == FRAME:
                self._drop(unit)
            else:
                self._quiet(unit, offset)
        self._next_look = min(self._count + WINDOW, self._limit)

    def _drop(self, unit: Unit) -> None:
        unit.dropped = True
        self._put(DROPPED | unit.number << NUMBER | FRAME)
        self._monitoring.set_local_events(self._tool, unit.code, 0)

    def _quiet(self, unit: Unit, offset: int) -> None:
        """Its next event is the last."""
        unit.quiet |= {offset // 2}
        unit.sites.pop(offset, None)
        self._put(DROPPED | unit.number << NUMBER | offset // 2)

    def _is_hot(self, site: Site) -> bool:
        """Whether it turned so often without a call of a group, and so fast, that it is not worth it."""
        now = monotonic_ns()
        is_hot = site.round == self._round and (now - site.since_ns) * PER_S < MOST_OF_A_ROUND * 1_000_000_000
        site.given += MOST_OF_A_ROUND
        site.left, site.since_ns, site.round = MOST_OF_A_ROUND, now, self._round
        return is_hot

    # -- code objects ---------------------------------------------------------------------------------

    def _is_recorded(self, code: CodeType) -> bool:
        user = users_files.get(code.co_filename)
        if not (is_user_code(code) if user is None else user) or code.co_filename[0] == "<":
            return False
        return code.co_name != "<genexpr>" and len(code.co_code) < 2 * MOST_CODE and not _is_compiled(code)

    def _unit(self, code: CodeType) -> Unit | None:
        unit = self._units.get(id(code))
        if unit is None and len(self._units) < MOST_UNITS:
            flow, quiet = flow_of(code)
            text = " ".join(f"{at},{line},{int(kind)},{target}" for at, line, kind, target in flow)
            number = self._box.row(
                text=getattr(code, "co_qualname", code.co_name),
                file=code.co_filename,
                line=code.co_firstlineno,
                flow=text,
            )
            if not number:
                return None
            unit = self._units[id(code)] = Unit(code, number, flow, quiet)
            self._monitoring.set_local_events(self._tool, code, self._local)
        return unit

    def _source(self, file: str) -> tuple[dict[int, tuple[Read, ...]], frozenset[int]]:
        if file not in self._sources:
            try:
                with Path(file).open("rb") as source:
                    text = source.read(MOST_SOURCE)
                self._sources[file] = reads_by_line(text), handled_ends(text)
            except (OSError, SyntaxError, ValueError, RecursionError) as error:
                pass_on(error)
                self._sources[file] = {}, frozenset()
        return self._sources[file]

    # -- events ---------------------------------------------------------------------------------------

    def _on_start(self, code: CodeType, offset: int) -> Any:
        if get_ident() != self._thread:
            # Another thread may be the first to come; where this one runs it, too, is not known yet.
            return None if id(code) in self._units or self._is_recorded(code) else self._monitoring.DISABLE
        try:
            unit = self._units.get(id(code))
            if unit is None:
                unit = self._unit(code) if self._is_recorded(code) else None
            if unit is None or unit.dropped:
                return self._monitoring.DISABLE
            self._enter(unit, sys._getframe(1), 0)
            entry = unit.entry
            entry.left -= 1
            if not entry.left and self._is_hot(entry):
                self._drop(unit)
                return self._monitoring.DISABLE
        except Exception as error:
            pass_on(error)
        return None

    def _on_resume(self, code: CodeType, offset: int) -> None:
        if get_ident() != self._thread:
            return
        try:
            unit = self._units.get(id(code))
            if unit is None or unit.dropped:
                return
            self._enter(unit, sys._getframe(1), offset // 2)
            unit.entry.left -= 1
            if not unit.entry.left and self._is_hot(unit.entry):
                self._drop(unit)
        except Exception as error:
            pass_on(error)

    def _enter(self, unit: Unit, frame: FrameType, offset: int) -> None:
        units, words, count = self._units, self._words, self._count
        above = frame.f_back
        for _ in MOST_HOPS:
            if above is None:
                break
            outer = units.get(id(above.f_code))
            if outer is not None and not outer.dropped:
                words[HEADER + count % ROOM] = AT | outer.number << NUMBER | above.f_lasti // 2
                count += 1
                break
            above = above.f_back
        words[HEADER + count % ROOM] = START | unit.number << NUMBER | offset
        words[1] = self._count = count + 1
        unit.at = offset
        unit.depth += 1
        if unit.depth > 1 and unit.is_alone:
            unit.share()
        if count >= self._next_look:
            self._look(frame)

    def _on_branch(self, code: CodeType, offset: int, destination: int) -> Any:
        if get_ident() != self._thread:
            return None
        try:
            unit = self._units[id(code)]
            site = unit.sites.get(offset)
            if site is None:
                if offset // 2 in unit.quiet:
                    return self._monitoring.DISABLE
                site = unit.sites[offset] = Site(BRANCH | unit.number << NUMBER | offset // 2 << HALF)
                site.round, site.since_ns = self._round, monotonic_ns()
            slots = site.slots.get(unit.at)
            if slots is None:
                slots = site.slots[unit.at] = self._slots_between(unit, unit.at, offset // 2)
            if slots:
                self._values(unit, slots, sys._getframe(1))
            unit.at = at = destination >> 1
            count, words = self._count, self._words
            words[HEADER + count % ROOM] = site.word | at
            words[1] = self._count = count + 1
            if count >= self._next_look:
                self._look(sys._getframe(1))
            site.left -= 1
            if not site.left and self._is_hot(site):
                self._quiet(unit, offset)
                return self._monitoring.DISABLE
        except Exception as error:
            pass_on(error)
        return None

    def _on_return(self, code: CodeType, offset: int, _: object) -> None:
        if get_ident() != self._thread:
            return
        try:
            unit = self._units.get(id(code))
            if unit is None or unit.dropped:
                return
            site = unit.ends.get(offset)
            if site is None:
                site = unit.ends[offset] = Site(LEFT | unit.number << NUMBER | offset // 2)
            slots = site.slots.get(unit.at)
            if slots is None:
                slots = site.slots[unit.at] = self._slots_between(unit, unit.at, offset // 2)
            if slots:
                self._values(unit, slots, sys._getframe(1))
            count, words = self._count, self._words
            words[HEADER + count % ROOM] = site.word
            words[1] = self._count = count + 1
            unit.depth -= 1
        except Exception as error:
            pass_on(error)

    def _on_unwind(self, code: CodeType, offset: int, _: object) -> None:
        if id(code) in self._units:
            self._of_exception(LEFT | UNWOUND, code, offset)

    def _on_handled(self, code: CodeType, offset: int, _: object) -> None:
        if id(code) in self._units:
            self._of_exception(HANDLED, code, offset)

    def _of_exception(self, what: int, code: CodeType, offset: int) -> None:
        try:
            unit = self._units.get(id(code))
            if unit is not None and not unit.dropped and get_ident() == self._thread:
                self._put(what | unit.number << NUMBER | offset // 2)
                unit.at = offset // 2
                unit.depth -= what != HANDLED
        except Exception as error:
            pass_on(error)

    def _on_raise(self, code: CodeType, offset: int, error: BaseException) -> None:
        try:
            unit = self._units.get(id(code))
            if unit is None or unit.dropped or get_ident() != self._thread:
                return
            kind, offset = type(error), offset // 2
            if issubclass(kind, NO_EXCEPTIONS):
                ends = self._source(code.co_filename)[1]
                if unit.way.at(offset) not in ends:
                    return
            self._put(AT | unit.number << NUMBER | offset)
            self._put(RAISED | self._box.text(kind.__name__) << NUMBER | offset)
        except Exception as failure:
            pass_on(failure)

    def call(self, text: str, number: int) -> None:
        """A call of a group begins, from the user's innermost frame."""
        if get_ident() != self._thread or os.getpid() != self._pid:
            return
        self._round += 1
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            unit = self._units.get(id(frame.f_code))
            if unit is not None and not unit.dropped:
                at = frame.f_lasti // 2
                slots = unit.entry.slots.get(at)
                if slots is None:
                    slots = unit.entry.slots[at] = self._slots_between(unit, at, at)
                    for each in self._frames(frame):
                        if id(each.f_code) in self._units:
                            self._units[id(each.f_code)].meets = True
                self._values(unit, slots, frame)
                self._put(AT | unit.number << NUMBER | at)
                break
            frame = frame.f_back
        self._put(CALL | self._box.text(text) << NUMBER | number)

    # -- values ---------------------------------------------------------------------------------------

    def _values(self, unit: Unit, slots: list[Slot], frame: FrameType) -> None:
        """Those that have changed since the code last read them."""
        given_up = False
        for slot in slots:
            seen = slot.seen
            value = frame.f_globals.get(slot.simple, OTHER) if slot.simple else OTHER
            if type(value) is not int:
                value = plain_value(frame, slot.read)
            if value is seen.last and value is not OTHER:
                continue
            self._write(slot, value)
            given_up |= seen.is_given_up
        if given_up:
            for slot in [slot for slot in slots if slot.seen.is_given_up]:
                self._put(UNREAD | slot.number << NUMBER)
                unit.give_up(slot.seen)

    def _write(self, slot: Slot, value: Any) -> None:
        kind, seen = type(value), slot.seen
        if value is OTHER:
            seen.others += 1
            if seen.last is not OTHER:
                self._put(TEXT | slot.number << NUMBER)
            seen.text, seen.last = 0, OTHER
            return
        seen.others = 0
        if kind is int and -(1 << 31) <= value < 1 << 31:
            if value != seen.last or type(seen.last) is not int:
                self._put(INT | slot.number << NUMBER | value & 0xFFFFFFFF)
            seen.last = value
        elif kind is float:
            if value != seen.last or type(seen.last) is not float:
                self._put(FLOAT | slot.number << NUMBER | _bits(value))
            seen.last = value
        else:
            text = self._plain.get(id(value)) or self._box.text(str(value))
            if text != seen.text or type(seen.last) in (int, float) or seen.last is OTHER:
                seen.bound += id(value) not in self._plain
                self._put(TEXT | slot.number << NUMBER | text)
            seen.text, seen.last = text, value

    def _slots_between(self, unit: Unit, begin: int, end: int) -> list[Slot]:
        """Each name that is read on the way, by the first line that reads it."""
        reads = self._source(unit.code.co_filename)[0]
        found: dict[Read, Slot] = {}
        way = unit.way.between(begin, end, unit.quiet) or ((unit.way.at(end), False),)
        for line, _ in way:
            for read in reads.get(line, ()):
                slot = unit.slots.get((line, read)) or self._slot(unit, line, read)
                is_old = slot is not None and slot.is_bound_once and unit.is_alone and begin != 0
                if slot is not None and not slot.seen.is_given_up and not is_old:
                    found.setdefault(read, slot)
        if begin == 0 and unit.is_alone:
            self._arguments(unit, found)
        return list(found.values())

    def _arguments(self, unit: Unit, found: dict[Read, Slot]) -> None:
        """Those that are read later, and never bound again."""
        reads = self._source(unit.code.co_filename)[0]
        for line in sorted({row[1] for row in unit.way.rows}):
            for read in reads.get(line, ()):
                if len(read) == 1 and read not in found:
                    slot = unit.slots.get((line, read)) or self._slot(unit, line, read)
                    if slot is not None and slot.is_bound_once and not slot.seen.is_given_up:
                        found[read] = slot

    def _slot(self, unit: Unit, line: int, read: Read) -> Slot | None:
        number = self._box.row(text=".".join(read), line=line, code=unit.number)
        if not number:
            return None
        seen = unit.seen.get(read)
        if seen is None:
            seen = unit.seen[read] = Seen()
            self._seen.append(seen)
        slot = unit.slots[line, read] = Slot(number, read, seen, unit.code)
        return slot


def _is_compiled(code: CodeType) -> bool:
    return code.co_name.startswith(COMPILED[0]) or any(
        name.startswith(COMPILED[1:]) for name in code.co_names
    )


def _bits(value: float) -> int:
    try:
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    except OverflowError:
        return 0x7F800000  # infinity
