"""Generation: a prompt fills the decode caches, then each token takes one step, on a GPU replayed as a CUDA graph."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nsa.cache import Rows
from nsa.decode_graph import RecordedDecode


class Decoder(Protocol):
    """A language model that decodes from caches: `nsa.model.NSAModel`."""

    blocks: nn.ModuleList
    head: nn.Linear

    def prefill(self, tokens: Tensor, caches: list) -> Tensor:
        """States of the prompts [B, T], which fill the caches."""

    def decode_step(self, tokens: Tensor, caches: list, *, compiled: bool = False) -> Tensor:
        """Logits of the next tokens, which join the caches."""


class Sampling(NamedTuple):
    """How tokens are drawn from the logits; temperature 0 takes the most probable one."""

    temperature: float = 1.0
    generator: torch.Generator | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        """One token a row of `logits` [B, vocab], as [B, 1]."""
        if self.temperature == 0:
            return logits.argmax(dim=-1, keepdim=True)
        probabilities = F.softmax(logits.float() / self.temperature, dim=-1)
        return torch.multinomial(probabilities, 1, generator=self.generator)


def generate(
    model: Decoder,
    tokens: Tensor,
    count: int,
    lengths: Tensor | None,
    sample: Sampling,
    *,
    compiled: bool = False,
) -> Tensor:
    """Right-padded rows of `tokens` [B, T], of `lengths` [B], each followed by `count` new tokens and then by 0."""
    batch, longest = tokens.shape
    lengths = torch.full((batch,), longest) if lengths is None else lengths
    rows = Rows(lengths.to(tokens.device, torch.int64, copy=True), longest + count)
    inside = torch.arange(longest, device=tokens.device) < rows.lengths[:, None]
    out = F.pad(tokens.where(inside, 0), (0, count))
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
        out.scatter_(1, rows.lengths[:, None], new)
        if made < count - 1:
            logits = step(new)
    return out
