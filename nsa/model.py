"""The language model around the attention: embedding, blocks, norm, head. It is independent of torch.distributed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nsa.attention.inputs import check_tokens
from nsa.config import AttentionConfig, ModelConfig
from nsa.generation import Sampling, generate
from nsa.layers.dense import DenseAttention
from nsa.layers.rope import RotationTable
from nsa.layers.sparse import NSAAttention
from nsa.padding import alignment_of, check_lengths, packing_of, rows_of

NO_TARGET = -100  # the target that the loss ignores, as in F.cross_entropy
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

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None, cache: object = None) -> Tensor:
        x = x + self.attn(self.norm1(x), cu_seqlens=cu_seqlens, cache=cache)
        return x + self.mlp(self.norm2(x))

    def decode(self, x: Tensor, cache: object) -> Tensor:
        """As `forward` for the next tokens [B, T, dim] of rows whose earlier ones are in a decode cache."""
        x = x + self.attn.decode(self.norm1(x), cache)
        return x + self.mlp(self.norm2(x))


@functools.cache
def compiled_decode() -> Callable[[Block, Tensor, object], Tensor]:
    """`Block.decode`, compiled."""
    return torch.compile(Block.decode)


def run_in_order(blocks: Iterable[nn.Module], x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
    """Apply the blocks in order."""
    for block in blocks:
        x = block(x, cu_seqlens)
    return x


class NSAModel(nn.Module):
    """A causal language model with native sparse attention, or with the dense control.

    `run_blocks` applies the blocks in a forward pass; activation checkpointing replaces it.
    """

    run_blocks: Callable[[Iterable[nn.Module], Tensor, Tensor | None], Tensor]

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
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the embedding, the head and the MLPs; other modules initialise themselves."""
        for module in (self.embed, self.head, *(block.mlp.fc1 for block in self.blocks)):
            nn.init.normal_(module.weight, std=INIT_STD)
        for block in self.blocks:
            nn.init.normal_(block.mlp.fc2.weight, std=INIT_STD / (2 * len(self.blocks)) ** 0.5)

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, T, vocab] of `tokens` [B, T]; given `targets` [B, T], their mean loss in nats.

        `cu_seqlens` are the borders of sequences packed into one row, as in `nsa_attention`. `attention_mask`
        [B, T] is 0 at padding, on any side: the other tokens are packed, and the logits of padding are 0. Positions
        count the tokens of each sequence. Targets of -100 are ignored; set those of padding to it.
        """
        return loss_of(self.head(self.states(tokens, cu_seqlens, attention_mask)), targets)

    def states(
        self, tokens: Tensor, cu_seqlens: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Hidden states that the head reads, [B, T, dim]; arguments as in `forward`."""
        check_tokens(tokens)
        if attention_mask is not None:
            if cu_seqlens is not None:
                raise ValueError("attention_mask and cu_seqlens both say where sequences end: give one")
            packing = packing_of(attention_mask, tokens)
            return packing.unpack(self.states(packing.pack(tokens), packing.cu_seqlens))
        # Grown here, as a compiled block cannot grow the table.
        self.rotations.upto(tokens.shape[1], tokens.device)
        return self.norm(self.run_blocks(self.blocks, self.embed(tokens), cu_seqlens))

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        count: int,
        *,
        lengths: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        generator: torch.Generator | None = None,
        compile: bool = False,
    ) -> Tensor:
        """`tokens` [B, T] followed by `count` sampled ones, [B, T + count]; temperature 0 takes the most probable one.

        `top_p` samples from the most probable tokens only, the fewest whose probabilities sum to at least it.

        Prompts of different lengths are given in one of three ways: right-padded rows with their `lengths` [B]; rows
        with padding on any side and an `attention_mask` [B, T], 0 at padding; or N prompts packed into one row with
        their borders `cu_seqlens` [N + 1]. Returned rows are left-aligned, and 0 after their last token.

        The prompt fills a cache per block, then each token takes one step. `compile` compiles the step, once for each
        shape. Raises ValueError for arguments that do not fit `tokens`, and for empty prompts.
        """
        check_tokens(tokens)
        if sum(given is not None for given in (lengths, attention_mask, cu_seqlens)) > 1:
            raise ValueError("give one of lengths, attention_mask, cu_seqlens: each says where prompts end")
        if attention_mask is not None:
            alignment = alignment_of(attention_mask, tokens)
            tokens, lengths = alignment.take(tokens), alignment.lengths
        elif cu_seqlens is not None:
            tokens, lengths = rows_of(tokens, cu_seqlens)
        elif lengths is not None:
            check_lengths(lengths, tokens)
        if count < 0:
            raise ValueError(f"count is {count}; it must not be negative")
        sample = Sampling(temperature, generator, top_p)
        sample.check()
        return generate(self, tokens, count, lengths, sample, compiled=compile)

    def decode_step(self, tokens: Tensor, caches: list, *, compiled: bool = False) -> Tensor:
        """Logits [B, T, vocab] of the next tokens [B, T], which join the decode caches of the blocks.

        `compiled`: each block as one graph of torch.compile, the same for all of them.
        """
        # Grown here, as a compiled block cannot grow the table.
        self.rotations.upto(max(cache.positions for cache in caches), tokens.device)
        decode = compiled_decode() if compiled else Block.decode
        x = self.embed(tokens)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = decode(block, x, cache)
        return self.head(self.norm(x))

    def prefill(self, tokens: Tensor, caches: list) -> Tensor:
        """As `states` for right-padded prompts [B, T], which fill the decode caches of the blocks."""
        x = self.embed(tokens)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache=cache)
        return self.norm(x)


def loss_of(logits: Tensor, targets: Tensor | None) -> Tensor:
    """The mean loss in nats over the `targets` that are not -100, 0 if there are none; the logits if `targets` is None."""
    if targets is None:
        return logits
    total = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
    return total / (targets != NO_TARGET).sum().clamp(min=1)


def parameter_count(model: nn.Module) -> int:
    """The number of trainable parameters of `model`."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _build_attention(config: ModelConfig, attention: AttentionConfig, rotations: RotationTable) -> nn.Module:
    sizes = (config.dim, config.heads, config.kv_groups, config.head_dim)
    if config.attention == "dense":
        return DenseAttention(*sizes, rotations=rotations, flash=config.flash)
    return NSAAttention(*sizes, attention, rotations=rotations)
