"""The journal of a rank: lines in proof.jsonl, tensors in proof.bin."""

from __future__ import annotations

import json
import os
from typing import Any

import torch

from nsadiag.evidence.layout import open_private
from nsadiag.worker import session

MOST_BYTES = 1 << 29  # of one rank: the step in which it is passed is the last
_PLAIN = {torch.float32: "f4", torch.float64: "f8", torch.int64: "i8", torch.int32: "i4", torch.uint8: "u1", torch.int16: "i2", torch.int8: "i1"}  # fmt: skip


class Journal:
    """The journal of this process; a process that it forks has none."""

    def __init__(self) -> None:
        self._lines: Any = None
        self._data: Any = None
        self._pid = 0
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        return self.bytes >= MOST_BYTES

    def write(self, what: str, step: int, tensor: torch.Tensor | None = None, **about: Any) -> None:
        """One line, and the tensor beside it."""
        if not self._is_open():
            return
        row: dict[str, Any] = {"what": what, "step": step, **about}
        if tensor is not None:
            row |= self._stored(tensor)
        self._lines.write(json.dumps(row) + "\n")

    def flush(self) -> None:
        """To be called at the end of a step: what is written by then is whole."""
        if self._is_open():
            self._data.flush()
            self._lines.flush()

    def _is_open(self) -> bool:
        rank = session.ensure_rank()
        if rank is None or self._pid not in (0, os.getpid()):
            return False
        if not self._pid:
            self._pid = os.getpid()
            self._lines = open_private(rank.directory.proof, "a")
            self._data = open_private(rank.directory.proof_data, "ab")
        return True

    def _stored(self, tensor: torch.Tensor) -> dict[str, Any]:
        plain = getattr(tensor, "_local_tensor", tensor).detach()
        dtype = str(plain.dtype).removeprefix("torch.")
        if plain.dtype not in _PLAIN:
            plain = plain.to(torch.int64 if plain.dtype is torch.bool else torch.float32)
        on_host = plain.to("cpu").contiguous()
        raw = on_host.reshape(-1).view(torch.uint8).numpy().tobytes() if on_host.numel() else b""
        at, self.bytes = self.bytes, self.bytes + len(raw)
        self._data.write(raw)
        return {"local": list(plain.shape), "dtype": dtype, "stored": _PLAIN[plain.dtype], "offset": at}


journal = Journal()
