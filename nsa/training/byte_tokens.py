"""Byte tokens: text as the UTF-8 bytes that the model reads and writes."""

from __future__ import annotations

import numpy as np
from torch import Tensor

END_OF_DOCUMENT = 0  # a byte that no text holds


def encode(text: str) -> np.ndarray:
    """The byte tokens of `text`, without an end of document."""
    return np.frombuffer(text.encode("utf-8"), dtype=np.uint8)


def decode(tokens: Tensor) -> str:
    """The text of one row of byte tokens; what is no UTF-8 shows as a replacement sign."""
    return bytes(tokens.tolist()).decode("utf-8", errors="replace")
