"""Generation: a prompt fills the decode caches, then each token takes one step, on a GPU replayed as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsa.cache import Rows

# Steps before one is recorded: kernels are compiled and memory is found in the first.
WARM_UP_STEPS = 2


class Sampling(NamedTuple):
    """Sampling of tokens from the logits; temperature 0 takes the most probable one.

    With `top_p` below 1 only the most probable tokens are sampled from: the fewest whose probabilities sum to at least it.
    """

    temperature: float = 1.0
    generator: torch.Generator | None = None
    top_p: float = 1.0

    def __call__(self, logits: Tensor) -> Tensor:
        """One token a row of `logits` [B, vocab], as [B, 1]."""
        if self.temperature == 0:
            return logits.argmax(dim=-1, keepdim=True)
        probabilities = F.softmax(logits.float() / self.temperature, dim=-1)
        if self.top_p < 1:
            ordered, order = probabilities.sort(dim=-1, descending=True)
            more_probable = ordered.cumsum(dim=-1) - ordered
            ordered = ordered.masked_fill(more_probable >= self.top_p, 0)
            probabilities = torch.zeros_like(probabilities).scatter(-1, order, ordered)
        return torch.multinomial(probabilities, 1, generator=self.generator)

    def check(self) -> None:
        """Raise ValueError for numbers that are none of a temperature or a probability."""
        if not self.temperature >= 0:
            raise ValueError(f"temperature is {self.temperature}; it must not be negative")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be greater than 0 and at most 1")


@torch.no_grad()
def new_tokens(
    model: nn.Module,
    tokens: Tensor,
    count: int,
    lengths: Tensor,
    sample: Sampling,
    *,
    compiled: bool = False,
) -> Iterator[Tensor]:
    """`count` new tokens [B, 1], one after another, after the right-padded rows of `tokens` [B, T], of `lengths` [B]; `model` is an `NSAModel`."""
    rows = Rows(lengths.to(tokens.device, torch.int64, copy=True), tokens.shape[1] + count)
    attentions = [block.attn for block in model.blocks]
    caches = [attention.new_decode_cache(rows) for attention in attentions]
    states = model.prefill(tokens, caches)
    logits = model.head(states[rows.index, rows.lengths - 1])
    recordable = all(attn.records(cache) for attn, cache in zip(attentions, caches, strict=True))
    step = RecordedDecode(
        lambda new: model.decode_step(new, caches, compiled=compiled), rows, recordable=recordable
    )
    for made in range(count):
        new = sample(logits)
        yield new
        if made < count - 1:
            logits = step(new)


def generate(
    model: nn.Module,
    tokens: Tensor,
    count: int,
    lengths: Tensor | None,
    sample: Sampling,
    *,
    compiled: bool = False,
) -> Tensor:
    """Right-padded rows of `tokens` [B, T], of `lengths` [B], each followed by `count` new tokens and then by 0; `model` is an `NSAModel`."""
    batch, longest = tokens.shape
    lengths = torch.full((batch,), longest) if lengths is None else lengths
    place = lengths.to(tokens.device, torch.int64)[:, None]
    inside = torch.arange(longest, device=tokens.device) < place
    out = F.pad(tokens.where(inside, 0), (0, count))
    for made, new in enumerate(new_tokens(model, tokens, count, lengths, sample, compiled=compiled)):
        out.scatter_(1, place + made, new)
    return out


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
