"""Tensors that the ranks of another run stored, read back."""

from __future__ import annotations

import math

import torch

from nsadiag.evidence.documents.files import open_evidence
from nsadiag.evidence.layout import RankDir
from nsadiag.evidence.rehearsal.proof import Kept

STORED = {
    "f4": torch.float32, "f8": torch.float64, "i8": torch.int64, "i4": torch.int32, "i2": torch.int16, "i1": torch.int8, "u1": torch.uint8,
}  # fmt: skip


def read_tensor(rank: RankDir, row: Kept) -> torch.Tensor:
    """The values of the line, in the type that they were stored in. Raises OSError, and KeyError for a type that is not stored."""
    dtype = STORED[row.stored]
    with open_evidence(rank.proof_data) as file:
        file.seek(row.offset)
        raw = bytearray(file.read(math.prod(row.local) * dtype.itemsize))
    if not raw:
        return torch.empty(row.local, dtype=dtype)
    return torch.frombuffer(raw, dtype=dtype).reshape(row.local)
