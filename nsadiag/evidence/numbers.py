"""Numbers in texts that others wrote: what is none that we could have written is none."""

from __future__ import annotations

import re

MOST_DIGITS = 18  # of a number that fits into 64 bits with its sign
LONGER = re.compile(r"\d{20}")  # than any number of 64 bits


def natural(text: str) -> int | None:
    """The number that the text is; None for any other text, and for more digits than a column of a table takes."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else None
