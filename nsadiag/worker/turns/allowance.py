"""The number of words that a rank may write, and what is given up where it writes more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nsadiag.evidence.ring.turns import FRAME
from nsadiag.worker.turns.units import Site, Unit

WINDOW = 2048  # words, after each of which the rest is counted
AT_ONCE = 20_000  # at the start, when everything is new, and after a quiet time: some 60 ms
PER_S = 1200  # at some 3 us each, as reckoned and not measured, 0.4 % of the time
WORDS_OF_A_FRAME = 3
# What is given up first, of what is as frequent: frames of which neither a branch nor a value is on record, then those in which
# ranks do not meet.
BARE, APART, MEETING = 8, 4, 1


class Allowance:
    """Fills up with time, and is used up by words."""

    def __init__(self, now_ns: int) -> None:
        self._left, self._count, self._ns = float(AT_ONCE), 0, now_ns

    def beyond(self, count: int, now_ns: int, units: Iterable[Unit]) -> Iterator[tuple[Unit, int]]:
        """Branches, and whole functions (`FRAME`), that are to be recorded no more, after so many words in all."""
        written, self._count = count - self._count, count
        earned, self._ns = (now_ns - self._ns) * PER_S / 1e9, now_ns
        self._left = min(max(self._left, 0) + earned, AT_ONCE) - written
        units = [unit for unit in units if not unit.dropped]
        if self._left < 0 and written > earned:
            yield from _most_frequent(units, (written - earned) / 2)
        for unit in units:
            for site in (unit.entry, *unit.sites.values()):
                site.before = site.total


def _most_frequent(units: Iterable[Unit], excess: float) -> Iterator[tuple[Unit, int]]:
    """As many as wrote so many words since the last look."""
    found: list[tuple[int, int, Unit, int]] = []
    for unit in units:
        weight = MEETING if unit.meets else BARE if unit.tells_its_calls_alone else APART
        found += [(weight * n, n, unit, at) for at, site in unit.sites.items() if (n := _lately(site))]
        if frames := WORDS_OF_A_FRAME * _lately(unit.entry):
            found.append((weight * frames, frames, unit, FRAME))
    found.sort(key=lambda each: each[0], reverse=True)
    for _, words, unit, offset in found:
        if excess <= 0:
            return
        excess -= words
        if not unit.dropped:
            yield unit, offset


def _lately(site: Site) -> int:
    return site.total - site.before
