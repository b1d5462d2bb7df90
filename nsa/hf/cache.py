"""The cache of `NSAForCausalLM`."""

from __future__ import annotations

from functools import partial

from torch import Tensor
from transformers.cache_utils import Cache

from nsa.cache import Rows, one_by_one
from nsa.model import NSAModel


class NSAPastKeyValues(Cache):
    """The decode caches of all layers, for rows of any lengths, which grow token by token."""

    is_compileable = False
    is_croppable = False

    def __init__(self, model: NSAModel, lengths: Tensor, prompt: int) -> None:
        """For prompts of `lengths` [B], padded to `prompt` tokens."""
        super().__init__(layers=[])
        self.rows = Rows.that_grow(lengths, prompt)
        self.caches = [block.attn.new_decode_cache(self.rows) for block in model.blocks]

    def step(self, model: NSAModel, tokens: Tensor) -> Tensor:
        """Logits [B, T, vocab] of the next tokens [B, T] of every row."""
        return one_by_one(tokens, self.rows, self.caches, partial(model.decode_step, caches=self.caches))

    @property
    def is_linear(self) -> list[bool]:
        """False for every layer: its length counts tokens, by which `generate` finds those that it has not seen."""
        return [False] * len(self.caches)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The number of tokens seen, padding included."""
        return self.rows.used

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the rows that a beam search continues with."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, in this order."""
        self.rows.pick(indices)
        for cache in self.caches:
            cache.pick(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        self.batch_select_indices(self.rows.index.repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Raise NotImplementedError: the window's ring has overwritten older tokens."""
        if tokens_to_remove:
            raise NotImplementedError("a cache of Native Sparse Attention cannot drop its newest tokens")

    def reset(self) -> None:
        """Raise NotImplementedError: a cache belongs to its prompt."""
        raise NotImplementedError(
            "a cache belongs to its prompt: leave past_key_values out to start a new one"
        )
