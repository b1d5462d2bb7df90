"""Byte tokens: text as the UTF-8 bytes that the model reads and writes."""

from __future__ import annotations

import numpy as np
from torch import Tensor

END_OF_DOCUMENT = 0  # a byte that does not occur in text


def encode(text: str) -> np.ndarray:
    """The byte tokens of `text`, without an end of document."""
    return np.frombuffer(text.encode("utf-8"), dtype=np.uint8)


def decode(tokens: Tensor) -> str:
    """The text of one row of byte tokens; invalid UTF-8 becomes the replacement character."""
    return bytes(tokens.tolist()).decode("utf-8", errors="replace")
