"""Ranks in a few words: of ten thousand nobody reads a list, and no file needs one."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

MOST_SPANS = 12
FEW = 4
MOST_RANKS = 1_000_000
PIECES = re.compile(r"\d{1,7}(-\d{1,7})?(,\d{1,7}(-\d{1,7})?)*")


def spans(ranks: Iterable[int]) -> str:
    """`0-6, 8-1023`; of very many pieces the first."""
    shown = _runs(ranks)
    return ", ".join([*shown[:MOST_SPANS], "..."] if len(shown) > MOST_SPANS else shown)


def rank_names(ranks: Collection[int]) -> str:
    """`0, 1, 5`, of more than a few `0-6, 8-1023`."""
    return ", ".join(map(str, ranks)) if len(ranks) <= FEW else spans(ranks)


def spelled(ranks: Iterable[int]) -> str:
    """`0-6,8`: all of them, for a reader that is a program."""
    return ",".join(_runs(ranks))


@functools.lru_cache(maxsize=4096)
def ranks_in(text: str) -> tuple[int, ...]:
    """The ranks in the output of `spelled`; cached, as a thousand nodes name the same ten thousand ranks. Raises ValueError."""
    if not text:
        return ()
    if not PIECES.fullmatch(text):
        raise ValueError(f"{text[:40]!r} are no ranks")
    runs = [piece.partition("-") for piece in text.split(",")]
    bounds = [(int(first), int(last or first)) for first, _, last in runs]
    if any(last < first for first, last in bounds) or sum(b - a + 1 for a, b in bounds) > MOST_RANKS:
        raise ValueError("ranks out of order, or more than any job has")
    return tuple(itertools.chain.from_iterable(range(first, last + 1) for first, last in bounds))


def _runs(ranks: Iterable[int]) -> list[str]:
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return [f"{a}" if a == b else f"{a}-{b}" for a, b in found]


def shortened(names: Sequence[str], most: int = 4) -> str:
    """The first few names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def listed(values: Iterable[object], most: int = 8) -> str:
    """The first few, for a sentence."""
    return ", ".join(str(value) for value in itertools.islice(values, most))


def by_rank(values: Mapping[int, object], shown: str = "", most: int = 8) -> str:
    """`rank 0: 0.5, rank 1: 0.25`: of the first few ranks, each in the format `shown`."""
    return listed((f"rank {rank}: {value:{shown}}" for rank, value in sorted(values.items())), most)
