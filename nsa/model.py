"""The language model around the attention: embedding, blocks, norm, head. Knows nothing distributed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsa.attention.dense_layer import DenseAttention
from nsa.attention.layer import NSAAttention
from nsa.attention.rope import RotationTable
from nsa.cache import Rows
from nsa.config import AttentionConfig, ModelConfig
from nsa.decoding import RecordedDecode

INIT_STD = 0.02  # GPT-2's; projections that add to the residual stream are scaled down by depth


class MLP(nn.Module):
    """fc2(gelu(fc1 x)), or fc2(silu(a) b) with fc1 x = [a, b]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden = config.mlp_hidden or 4 * config.dim
        self.gated = config.mlp == "swiglu"
        self.fc1 = nn.Linear(config.dim, hidden * (2 if self.gated else 1), bias=False)
        self.fc2 = nn.Linear(hidden, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            gate, up = self.fc1(x).chunk(2, dim=-1)
            return self.fc2(F.silu(gate) * up)
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """Pre-norm transformer block, [B, T, dim] to [B, T, dim]."""

    def __init__(self, config: ModelConfig, attention: AttentionConfig, rotations: RotationTable) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.dim, eps=1e-5)
        self.attn = _build_attention(config, attention, rotations)
        self.norm2 = nn.RMSNorm(config.dim, eps=1e-5)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cache: object = None) -> Tensor:
        x = x + self.attn(self.norm1(x), cache=cache)
        return x + self.mlp(self.norm2(x))

    def decode(self, x: Tensor, cache: object) -> Tensor:
        """The next tokens [B, T, dim] of rows whose earlier ones are in a decode cache."""
        x = x + self.attn.decode(self.norm1(x), cache)
        return x + self.mlp(self.norm2(x))


def run_in_order(blocks: Iterable[nn.Module], x: Tensor) -> Tensor:
    """Each block on the output of the one before."""
    for block in blocks:
        x = block(x)
    return x


class NSAModel(nn.Module):
    """A causal language model with native sparse attention, or with the dense control.

    `run_blocks` says how a training forward walks the blocks; activation checkpointing replaces it.
    """

    run_blocks: Callable[[Iterable[nn.Module], Tensor], Tensor]

    def __init__(self, config: ModelConfig, attention: AttentionConfig | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.dim)
        self.rotations = RotationTable(config.head_dim, config.rope_base)
        self.blocks = nn.ModuleList(
            Block(config, attention or AttentionConfig(), self.rotations) for _ in range(config.layers)
        )
        self.norm = nn.RMSNorm(config.dim, eps=1e-5)
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.run_blocks = run_in_order
        self._initialise(config.layers)

    def _initialise(self, layers: int) -> None:
        for module in (self.embed, self.head, *(block.mlp.fc1 for block in self.blocks)):
            nn.init.normal_(module.weight, std=INIT_STD)
        for block in self.blocks:
            nn.init.normal_(block.mlp.fc2.weight, std=INIT_STD / (2 * layers) ** 0.5)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits [B, T, vocab] of `tokens` [B, T]; given `targets` [B, T], the mean loss in nats."""
        self.rotations.upto(
            tokens.shape[1], tokens.device
        )  # here, so that no compiled block has to make them
        x = self.run_blocks(self.blocks, self.embed(tokens))
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        count: int,
        *,
        lengths: Tensor | None = None,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """`tokens` [B, T] followed by `count` sampled ones; temperature 0 takes the likeliest.

        Rows may hold `lengths` [B] tokens of their own, padded behind by anything: theirs follow where they end, and
        the rest of the row is 0. The prompt fills a cache per block, then each token costs one step.
        """
        batch, longest = tokens.shape
        lengths = torch.full((batch,), longest) if lengths is None else lengths
        rows = Rows(lengths.to(tokens.device, torch.int64, copy=True), longest + count)
        inside = torch.arange(longest, device=tokens.device) < rows.lengths[:, None]
        out = F.pad(tokens.where(inside, 0), (0, count))
        caches = [block.attn.new_decode_cache(rows) for block in self.blocks]
        logits = self._prefill(tokens, caches, rows)
        attentions = (block.attn for block in self.blocks)
        recordable = all(attn.records(cache) for attn, cache in zip(attentions, caches, strict=True))
        step = RecordedDecode(lambda new: self.decode_step(new, caches), rows, recordable=recordable)
        for made in range(count):
            new = _sample(logits, temperature, generator)
            out.scatter_(1, rows.lengths[:, None], new)
            if made < count - 1:
                logits = step(new)
        return out

    def decode_step(self, tokens: Tensor, caches: list) -> Tensor:
        """Logits [B, T, vocab] of the next tokens [B, T], which join the decode caches of the blocks."""
        x = self.embed(tokens)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block.decode(x, cache)
        return self.head(self.norm(x))

    def _prefill(self, tokens: Tensor, caches: list, rows: Rows) -> Tensor:
        """Logits [B, vocab] of what follows each row of the prompt."""
        x = self.embed(tokens)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache)
        return self.head(self.norm(x[rows.index, rows.lengths - 1]))


def parameter_count(model: nn.Module) -> int:
    """Trainable numbers in `model`."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _build_attention(config: ModelConfig, attention: AttentionConfig, rotations: RotationTable) -> nn.Module:
    sizes = (config.dim, config.heads, config.kv_groups, config.head_dim)
    if config.attention == "dense":
        return DenseAttention(*sizes, rotations=rotations)
    return NSAAttention(*sizes, attention, rotations=rotations)


def _sample(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """One token a row of `logits` [B, vocab], as [B, 1]."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    probabilities = F.softmax(logits.float() / temperature, dim=-1)
    return torch.multinomial(probabilities, 1, generator=generator)
