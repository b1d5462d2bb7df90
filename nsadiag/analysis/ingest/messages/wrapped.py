"""Lines that a terminal broke at its width, put together again: what people copy from a screen."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

from nsadiag.analysis.ingest.messages.lines import NO_PREFIX
from nsadiag.analysis.ingest.messages.prefixes import parsed
from nsadiag.analysis.ingest.messages.tracebacks import CHAINS, CONTINUES

Numbered = tuple[int, str]
LOOK_AHEAD = 256  # lines in which the width shows
WIDTHS = range(60, 400)
LEAST_FULL = 3  # lines of this length of which the next one is no beginning
MOST_OF_THEM = 0.6
MOST_JOINED = 40
# Blocks, and the frames of tables and boxes, in which lines of one length are usual.
BEGINS = ("Traceback ", "terminate called", "{", "==", "--", "  ", "│", "╭", "╰", "+", "|", "#", "*")


def unwrapped(lines: Iterable[Numbered]) -> Iterator[Numbered]:
    """The same lines; where lines of one length go on in the next one, put together."""
    rest = iter(lines)
    first = list(itertools.islice(rest, LOOK_AHEAD))
    width = _width(first)
    every = itertools.chain(first, rest)
    return _joined(every, width) if width else every


def _width(lines: list[Numbered]) -> int:
    """The width of the terminal; 0 where nothing was broken."""
    lengths = Counter(len(text) for _, text in lines if len(text) in WIDTHS)
    broken = Counter(
        len(text)
        for (number, text), (after, rest) in itertools.pairwise(lines)
        if after == number + 1 and len(text) in WIDTHS and not text.startswith(BEGINS) and _goes_on(rest)
    )
    full = [w for w, times in broken.items() if times >= max(LEAST_FULL, MOST_OF_THEM * lengths[w])]
    return max(full, key=lambda width: (broken[width], width), default=0)


def _joined(lines: Iterable[Numbered], width: int) -> Iterator[Numbered]:
    begun: Numbered | None = None
    last, parts, is_full = 0, 0, False
    for number, text in lines:
        if begun and is_full and number == last + 1 and parts < MOST_JOINED and _goes_on(text):
            begun, parts = (begun[0], begun[1] + text), parts + 1
        else:
            if begun:
                yield begun
            begun, parts = (number, text), 1
        last, is_full = number, len(text) == width and not text.startswith(BEGINS)
    if begun:
        yield begun


def _goes_on(text: str) -> bool:
    """Whether a line may be the rest of the one before it: nothing says that it begins anew."""
    if not text.strip() or text.startswith(BEGINS):
        return False
    return not (text.strip() in CHAINS or CONTINUES.match(text.lstrip())) and parsed(text)[0] is NO_PREFIX
