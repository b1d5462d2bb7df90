"""The turns of a real job's ranks as the words of a path: what lay between two turns follows from the code."""

from __future__ import annotations

import array
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from nsadiag.evidence.rehearsal.paths import NUMBER, WHAT, Named, Walked, Word
from nsadiag.evidence.ring.turns import FRAME, HALF, UNWOUND, Turn, Turns, Way, rows_of, split

MOST_LINES = 60_000  # of one rank: what is aligned has a limit
LINE, ENTER, LEAVE, RAISED, CALL, NAME, VALUE, FOLDED = (int(each) << WHAT for each in Word)

Unread = tuple[str, str, int, str]  # a code object, and a name in it
Dropped = frozenset[
    tuple[str, str, int, int]
]  # file, name and line of a code object; the branch in it, or FRAME


def walked_of(turns: Mapping[int, Turns], victims: Collection[int] = ()) -> dict[int, Walked]:
    """By rank: the same part of the job's calls, without what any of the ranks had given up.

    `victims`: ranks that ended by an exception because others had ended. Their path ends where they were then.
    """
    dropped = frozenset(key for each in turns.values() for key in _dropped(each))
    unread = frozenset(key for each in turns.values() for key in _unread(each))
    expanded = {rank: _Expansion(each, dropped, unread) for rank, each in turns.items()}
    begins = _common_beginning(expanded) if expanded else None
    if begins is None:
        return {}
    return {
        rank: each.walked(begins[rank], to_the_end=rank not in victims) for rank, each in expanded.items()
    }


def _key(named: Named) -> tuple[str, str, int]:
    return named.file, named.text, named.line


def _dropped(turns: Turns) -> Iterator[tuple[str, str, int, int]]:
    for word in turns.words:
        what, number, low = split(word)
        if what == Turn.DROPPED and number in turns.names:
            yield (*_key(turns.names[number]), low)


def _unread(turns: Turns) -> Iterator[Unread]:
    for word in turns.words:
        what, number, _ = split(word)
        if what == Turn.UNREAD and number in turns.names:
            yield _name_of(turns.names, number)


def _name_of(names: Mapping[int, Named], number: int) -> Unread:
    code = names.get(names[number].code)
    return (*(_key(code) if code else ("", "", 0)), names[number].text)


@dataclass(slots=True)
class _Frame:
    number: int
    at: int
    line: int = 0
    raised: int = 0  # words before the last exception that was seen in it, and where that came from


class _Expansion:
    """One rank's words, line by line."""

    def __init__(self, turns: Turns, dropped: Dropped, unread: frozenset[Unread]) -> None:
        self.names, self.begins = dict(turns.names), turns.begins
        self._ways: dict[int, Way] = {}
        self._quiet: dict[int, frozenset[int]] = {}
        self._silent: set[int] = set()
        self._unread = {
            n for n, named in self.names.items() if named.code and _name_of(self.names, n) in unread
        }
        by_key: dict[tuple[str, str, int], set[int]] = {}
        for file, text, line, low in dropped:
            by_key.setdefault((file, text, line), set()).add(low)
        for number, named in self.names.items():
            if named.flow:
                lows = by_key.get(_key(named), set())
                self._quiet[number] = frozenset(lows - {FRAME})
                self._ways[number] = _way(named.flow)
                if FRAME in lows:
                    self._silent.add(number)
        self._texts: dict[str, int] = {}
        self._stack: list[_Frame] = []
        self._unwound = 0  # words before the exception by which the last frame was left
        self._end = 0  # the same of the outermost frame; 0 where it was not
        self._pending: list[tuple[int, int, int]] = []
        self.words = array.array("Q")
        self.calls: list[tuple[tuple[str, int], int, list[tuple[int, int]]]] = []
        for word in turns.words:
            self._one(*split(word))
        self._stack.clear()

    # -- words ----------------------------------------------------------------------------------------

    def _put(self, what: int, number: int, low: int) -> None:
        self.words.append(what | number << NUMBER | low)

    def _text(self, text: str) -> int:
        number = self._texts.get(text)
        if number is None:
            number = self._texts[text] = max(self.names, default=0) + 1
            self.names[number] = Named(number=number, text=text)
        return number

    def _one(self, what: int, number: int, low: int) -> None:
        if what in (Turn.TEXT, Turn.INT, Turn.FLOAT):
            if number not in self._unread:
                self._pending.append((number, what, low))
        elif what == Turn.CALL:
            self._call(number, low)
        elif what == Turn.RAISED:
            if self._stack:
                self._stack[-1].raised = self._unwound or len(self.words)
                self._put(RAISED, number, self._stack[-1].line)
        elif number in self._ways and number not in self._silent:
            self._of_frame(what, number, low)

    def _of_frame(self, what: int, number: int, low: int) -> None:
        if what != Turn.AT:
            self._unwound = 0
        if what in (Turn.START, Turn.HELD):
            self._enter(number, low, held=what == Turn.HELD)
            return
        frame = self._top(number, low & UNWOUND - 1 if what == Turn.LEFT else low)
        if what == Turn.BRANCH:
            turned = low >> HALF
            if turned not in self._quiet[number]:
                self._go(frame, turned)
                frame.at = low & (1 << HALF) - 1
        elif what == Turn.AT:
            self._go(frame, low)
        elif what == Turn.HANDLED:
            frame.at = low
        elif what == Turn.LEFT:
            self._go(frame, low & UNWOUND - 1)
            self._leave()
            self._unwound = frame.raised if low & UNWOUND else 0
            if not self._stack:
                self._end = self._unwound

    def _enter(self, number: int, offset: int, *, held: bool) -> None:
        pending, self._pending = self._pending, []
        for value in pending if self._stack else ():
            self._value(*value)
        frame = _Frame(number, offset)
        if held or offset:
            frame.line = self._ways[number].at(offset)
        self._stack.append(frame)
        self._put(ENTER, number, frame.line or self.names[number].line)
        if held:
            self._put(LINE, 0, frame.line)

    def _leave(self) -> None:
        self._put(LEAVE, 0, self._stack.pop().line)

    def _top(self, number: int, offset: int) -> _Frame:
        """The innermost frame of that code: those above it have been left."""
        if any(frame.number == number for frame in self._stack):
            while self._stack[-1].number != number:
                self._leave()
        else:
            self._enter(number, offset, held=True)
        return self._stack[-1]

    def _go(self, frame: _Frame, offset: int) -> None:
        """All lines on the way to an offset, each with the values that it read."""
        way = self._ways[frame.number].between(frame.at, offset, self._quiet[frame.number])
        seen: dict[int, list[tuple[int, int, int]]] = {}
        for slot, what, low in self._pending:
            seen.setdefault(self.names[slot].line if slot in self.names else 0, []).append((slot, what, low))
        self._pending = []
        here = self._ways[frame.number].at(offset)
        for line, is_anew in way or ((here, False),):
            if line and (line != frame.line or is_anew):
                frame.line = line
                self._put(LINE, 0, line)
            for value in seen.pop(line, ()):
                self._value(*value)
        for values in seen.values():
            for value in values:
                self._value(*value)
        frame.at = offset

    def _value(self, slot: int, what: int, low: int) -> None:
        named = self.names.get(slot)
        if named is None:
            return
        if what == Turn.INT:
            text = str(low - (1 << 32) if low >> 31 else low)
        elif what == Turn.FLOAT:
            text = f"{struct.unpack('<f', struct.pack('<I', low))[0]:.6g}"
        else:
            text = self.names[low].text if low in self.names else ""
        self._put(NAME, self._text(named.text), 0)
        self._put(VALUE, self._text(text), 0)

    def _call(self, number: int, low: int) -> None:
        text = self.names[number].text if number in self.names else ""
        self._end = 0
        self._put(CALL, number, low)
        self.calls.append(((text, low), len(self.words), [(f.number, f.line) for f in self._stack]))

    # -- the part that is aligned ---------------------------------------------------------------------

    def walked(self, begin: int, *, to_the_end: bool) -> Walked:
        """From behind the call of that index on; all of it from -1. Else only up to the exception that ended it."""
        end = (None if to_the_end else self._end) or len(self.words)
        if begin < 0:
            return Walked(words=self.words[:end], names=self.names, is_whole=True)
        _, at, stack = self.calls[begin]
        words = array.array("Q")
        for number, line in stack:
            words.append(ENTER | number << NUMBER | line)
            words.append(LINE | line)
        words.extend(self.words[at:end])
        return Walked(words=words, names=self.names, is_whole=True)


def _common_beginning(ranks: Mapping[int, _Expansion]) -> dict[int, int] | None:
    """By rank the index of the call behind which all ranks' paths begin: the same call, early, with not too much behind it."""
    if all(each.begins and len(each.words) <= MOST_LINES for each in ranks.values()):
        return dict.fromkeys(ranks, -1)
    where = {rank: {key: n for n, (key, _, _) in enumerate(each.calls)} for rank, each in ranks.items()}
    first = next(iter(ranks.values()))
    common = [key for key, _, _ in first.calls if all(key in own for own in where.values())]
    if not common:
        return None
    fits = (
        key
        for key in common
        if all(
            len(each.words) - each.calls[where[rank][key]][1] <= MOST_LINES for rank, each in ranks.items()
        )
    )
    key = next(fits, common[-1])
    return {rank: own[key] for rank, own in where.items()}


def _way(flow: str) -> Way:
    try:
        return Way(rows_of(flow))
    except ValueError:
        return Way([])
