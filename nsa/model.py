"""The language model around the attention: embedding, blocks, norm, head. Knows nothing distributed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsa.attention.layer import DenseAttention, NSAAttention
from nsa.attention.rope import RotationTable
from nsa.config import AttentionConfig, ModelConfig

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
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """`tokens` [B, T] followed by `count` sampled ones; temperature 0 takes the likeliest.

        Decodes incrementally: the prompt fills a cache per block, then each token costs one step.
        """
        caches = [block.attn.new_cache() for block in self.blocks]
        pending = tokens
        for _ in range(count):
            logits = self._decode(pending, caches)[:, -1]
            pending = _sample(logits, temperature, generator)
            tokens = torch.cat([tokens, pending], dim=1)
        return tokens

    def _decode(self, tokens: Tensor, caches: list) -> Tensor:
        x = self.embed(tokens)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache)
        return self.head(self.norm(x))


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
