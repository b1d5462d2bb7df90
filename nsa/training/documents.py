"""Documents as tokens, and batches of them packed end to end, with their borders."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from nsa.model import NO_TARGET

END_OF_DOCUMENT = 0  # a byte that does not occur in text
FEWEST_BORDERS = 8


def encode(text: str) -> np.ndarray:
    """The byte tokens of `text`, without an end of document."""
    return np.frombuffer(text.encode("utf-8"), dtype=np.uint8)


def decode(tokens: Tensor) -> str:
    """The text of one row of byte tokens; invalid UTF-8 becomes the replacement character."""
    return bytes(tokens.tolist()).decode("utf-8", errors="replace")


class Batch(NamedTuple):
    """Inputs of the model; separate documents are packed into one row, [1, B * T]."""

    inputs: Tensor  # int64 [B, T]
    targets: Tensor  # int64 [B, T], NO_TARGET where the next token is of another document
    cu_seqlens: Tensor | None = None  # int32 [N + 1]

    def to(self, device: torch.device) -> Batch:
        """The same on `device`."""
        return Batch(*(x if x is None else x.to(device, non_blocking=True) for x in self))

    def counted(self) -> Tensor:
        """The number of targets that the loss is a mean over, int64 []."""
        return (self.targets != NO_TARGET).sum()


def joined(tokens: Tensor) -> Batch:
    """A batch in which every token of the rows [B, T + 1] sees all earlier ones of its row."""
    return Batch(tokens[:, :-1], tokens[:, 1:])


def separate(tokens: Tensor, end_of_document: int = END_OF_DOCUMENT) -> Batch:
    """Rows [B, T + 1] as one row of separate documents: positions restart, and attention crosses no border.

    The last token of a document has no target. A document that continues in the next row is a new one there. The number
    of borders is padded to a power of two by empty sequences at the end, so that few shapes are compiled.
    """
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    ends = inputs == end_of_document
    starts = ends.roll(1, dims=1)
    starts[:, 0] = True
    borders = starts.flatten().nonzero().squeeze(1)
    wanted = max(FEWEST_BORDERS, 1 << len(borders).bit_length())
    cu_seqlens = torch.full((wanted,), inputs.numel(), dtype=torch.int32)
    cu_seqlens[: len(borders)] = borders
    return Batch(inputs.reshape(1, -1), targets.masked_fill(ends, NO_TARGET).reshape(1, -1), cu_seqlens)
