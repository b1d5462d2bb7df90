"""Axes that are sizes, and the predicted cost of a cell before anything is known: the product of its sizes and ranks.

Standard library only: a matrix is put in order before anything heavy is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

# Numbers that say which, how fast or how patient, not how much: a larger one is no dearer.
NO_SIZES = re.compile(
    r"(^|_)(repeat|seed|port|lr|rate|decay|momentum|dropout|prob\w*|p|temperature|eps\w*|beta\d*|version|rank"
    r"|timeout(_s)?|stall\w*|fault\w*|id|index|bucket_cap_mb)($|_)",
    re.IGNORECASE,
)
ONE_NUMBER = re.compile(r"\D*(\d+(?:\.\d+)?)\D*")


def sizes_in(axes: Mapping[str, Sequence[str]], named: Sequence[str] = ()) -> dict[str, dict[str, float]]:
    """By axis, label to number, of the axes whose values are sizes.

    Those that the user named, whose labels may have letters around their number (`s512`); without any named, those
    with two values or more that are all positive numbers, unless their name says that they are something else.
    """
    if named:
        found = {name: _numbers(axes.get(name, ()), lenient=True) for name in named}
    else:
        found = {name: _numbers(labels) for name, labels in axes.items() if not NO_SIZES.search(name)}
    return {name: numbers for name, numbers in found.items() if len(set(numbers.values())) > 1}


def _numbers(labels: Sequence[str], *, lenient: bool = False) -> dict[str, float]:
    """Empty if any label is no positive number."""
    numbers = {}
    for label in labels:
        found = ONE_NUMBER.fullmatch(label) if lenient else None
        try:
            number = float(found[1] if found else label)
        except ValueError:
            return {}
        if not 0 < number < float("inf"):
            return {}
        numbers[label] = number
    return numbers


def effort(factors: Mapping[str, str], world_size: int, sizes: Mapping[str, Mapping[str, float]]) -> float:
    """For comparison with other cells of the same matrix only."""
    product = float(world_size)
    for name, numbers in sizes.items():
        product *= numbers.get(factors.get(name, ""), 1.0)
    return product
