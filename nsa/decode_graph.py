"""Decode steps of a whole model: the first ones as they are, the rest, on a GPU, as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nsa.cache import Rows

# Steps before one is recorded: kernels are compiled and memory is found in the first.
WARM_UP_STEPS = 2


class RecordedDecode:
    """Steps of one token a row; `step` gives logits [B, 1, vocab] of tokens [B, 1] from caches at fixed places."""

    def __init__(self, step: Callable[[Tensor], Tensor], rows: Rows, *, recordable: bool = True) -> None:
        self._step, self._rows, self._recordable = step, rows, recordable
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._tokens: Tensor | None = None
        self._logits: Tensor | None = None

    def __call__(self, tokens: Tensor) -> Tensor:
        """Logits [B, vocab] of what follows `tokens` [B, 1]; the next call overwrites them."""
        self._calls += 1
        if tokens.device.type != "cuda" or not self._recordable or self._calls <= WARM_UP_STEPS:
            return self._advance(tokens)
        if self._graph is None:
            self._record(tokens)
        self._tokens.copy_(tokens)
        self._graph.replay()
        return self._logits

    def _advance(self, tokens: Tensor) -> Tensor:
        logits = self._step(tokens)[:, -1]
        self._rows.lengths += 1
        return logits

    def _record(self, tokens: Tensor) -> None:
        self._tokens, self._graph = tokens.clone(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._logits = self._advance(self._tokens)
