"""The steps at which every rank looks more closely: they follow from their number alone."""

from __future__ import annotations


def is_look(steps: int) -> bool:
    """Powers of two, from 16 on halfway between them, from 256 on in quarters: a drift shows before the job is a quarter as long again.

    So they are never less than 64 steps apart from 128 on.
    """
    power = 1 << max(steps.bit_length() - 1, 0)
    parts = 4 if steps > 256 else 2 if steps > 16 else 1
    return steps % (power // parts or 1) == 0
