"""Native Sparse Attention in transformers: configuration, causal language model, cache; `import nsa.hf` registers them.

AutoModelForCausalLM.from_config(NSAConfig(hidden_size=256, num_attention_heads=8))
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from nsa.attention.compressed import BlockCompression
from nsa.cache import Rows, one_by_one
from nsa.config import AttentionConfig, ModelConfig
from nsa.model import INIT_STD, NO_TARGET, NSAModel
from nsa.padding import alignment_of, borders_of, check_mask, check_new_tokens
from nsa.training.recomputation import apply_activation_checkpointing

# The name of the cache in model outputs: transformers 5.24 renamed past_key_values to cache.
_CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


class NSAConfig(PreTrainedConfig):
    """Sizes under transformers' names, and the fields of `AttentionConfig` under ours; lengths are tokens.

    `head_dim` is hidden_size / num_attention_heads by default and must be even, `intermediate_size` 4 hidden_size.
    Byte 0 ends a document, and pads.
    """

    model_type = "nsa"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache", "past_key_values"]

    vocab_size: int = 256
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int = 2
    head_dim: int | None = None
    intermediate_size: int | None = None
    mlp: str = "gelu"
    attention: str = "nsa"
    rope_base: float = 10_000.0
    compress_block: int = 32
    compress_stride: int = 16
    select_block: int = 64
    select_count: int = 16
    window: int = 512
    initial_blocks: int = 1
    local_blocks: int = 2
    compression: str = "mlp"
    branches: tuple[str, ...] | list[str] = ("compressed", "selected", "sliding")
    backend: str = "auto"
    use_cache: bool = True
    tie_word_embeddings: bool = False
    pad_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 0

    def __post_init__(self, **kwargs: Any) -> None:
        self.head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        self.intermediate_size = self.intermediate_size or 4 * self.hidden_size
        self.attention_config()
        self.model_config()
        super().__post_init__(**kwargs)

    def attention_config(self) -> AttentionConfig:
        """The configuration of the attention; ConfigError for values that are not supported."""
        return AttentionConfig(**{name: getattr(self, name) for name in AttentionConfig.model_fields})

    def model_config(self) -> ModelConfig:
        """The configuration of `NSAModel`; ConfigError for values that are not supported."""
        return ModelConfig(
            vocab_size=self.vocab_size,
            layers=self.num_hidden_layers,
            dim=self.hidden_size,
            heads=self.num_attention_heads,
            kv_groups=self.num_key_value_heads,
            head_dim=self.head_dim,
            attention=self.attention,
            mlp=self.mlp,
            mlp_hidden=self.intermediate_size,
            rope_base=self.rope_base,
        )


class NSAPastKeyValues(Cache):
    """The decode caches of all layers, for rows of any lengths, which grow token by token."""

    is_compileable = False

    def __init__(self, model: NSAModel, lengths: Tensor, prompt: int) -> None:
        """For prompts of `lengths` [B], padded to `prompt` tokens."""
        super().__init__(layers=[])
        self.rows = Rows.that_grow(lengths, prompt)
        self.caches = [block.attn.new_decode_cache(self.rows) for block in model.blocks]
        self._seen = prompt

    def step(self, model: NSAModel, tokens: Tensor) -> Tensor:
        """Logits [B, T, vocab] of the next tokens [B, T] of every row."""
        self._seen += tokens.shape[1]
        return one_by_one(tokens, self.rows, self.caches, partial(model.decode_step, caches=self.caches))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The number of tokens seen, padding included."""
        return self._seen

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


class NSAForCausalLM(PreTrainedModel, GenerationMixin):
    """`NSAModel` for transformers: `from_pretrained`, `generate`, `Trainer`."""

    config_class = NSAConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ("Block",)
    _tied_weights_keys: ClassVar[dict[str, str]] = {"model.head.weight": "model.embed.weight"}

    def __init__(self, config: NSAConfig) -> None:
        super().__init__(config)
        self.model = NSAModel(config.model_config(), config.attention_config())
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise the weights that a checkpoint lacks as those of a new `NSAModel`; transformers skips loaded ones."""
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=INIT_STD)
        elif isinstance(module, (nn.Linear, nn.RMSNorm, BlockCompression, NSAModel)):
            module.reset_parameters()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the cache needs the model, so the first forward creates it

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of the tokens."""
        return self.model.embed

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace it."""
        self.model.embed = value

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.model.head

    def set_output_embeddings(self, value: nn.Module) -> None:
        """Replace it."""
        self.model.head = value

    def gradient_checkpointing_enable(
        self,
        gradient_checkpointing_kwargs: dict[str, Any] | None = None,
        every_n_layers: int = 1,
        offload: bool = False,
    ) -> None:
        """Recompute every block in backward, or every second one; ValueError for other numbers, and for offloading."""
        if every_n_layers not in (1, 2) or offload:
            raise ValueError(
                f"every_n_layers is {every_n_layers}, offload {offload}: they may be 1 or 2, and False"
            )
        reentrant = bool((gradient_checkpointing_kwargs or {}).get("use_reentrant", False))
        mode = "full" if every_n_layers == 1 else "selective"
        apply_activation_checkpointing(self.model, mode, reentrant=reentrant)
        self.gradient_checkpointing = True  # by which transformers knows

    def gradient_checkpointing_disable(self) -> None:
        """Recompute nothing."""
        apply_activation_checkpointing(self.model, "none")
        self.gradient_checkpointing = False

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: NSAPastKeyValues | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        cu_seqlens: Tensor | None = None,
        position_ids: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        cache: NSAPastKeyValues | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits [B, T, vocab] of `input_ids` [B, T], the mean loss of `labels` [B, T] in nats, and the cache.

        Labels are shifted here; the label of a sequence's first token, which no token predicts, is ignored.
        `attention_mask` [B, T] is 0 at padding, on either side. `cu_seqlens` [N + 1] are the borders of sequences
        packed into one row; `position_ids` [1, T] that restart at 0 say the same. Positions are otherwise counted here:
        `position_ids` are ignored with a mask or a cache. With `logits_to_keep` n, logits are those of the last n
        tokens; it may also be a tensor of positions.

        Without gradients and labels, `use_cache` (the default) returns a cache, to be passed to the next call together with
        the next tokens, as `past_key_values` or as `cache`, its name since transformers 5.24. Other arguments
        (loss settings) are passed on to the loss. Raises ValueError for `inputs_embeds`, for caches of other models, for
        padding after a cache, for a mask together with `cu_seqlens`, and for other positions.
        """
        past_key_values = cache if past_key_values is None else past_key_values
        if others.pop("inputs_embeds", None) is not None:
            raise ValueError("inputs_embeds are not supported: give input_ids")
        if attention_mask is not None and past_key_values is None:
            check_mask(attention_mask, input_ids)
        elif position_ids is not None and past_key_values is None and cu_seqlens is None:
            cu_seqlens = borders_of(position_ids)
        use_cache = (self.config.use_cache if use_cache is None else use_cache) and labels is None
        kept = logits_to_keep
        if isinstance(logits_to_keep, int):
            kept = slice(-logits_to_keep, None) if logits_to_keep else slice(None)
        if past_key_values is not None:
            if not isinstance(past_key_values, NSAPastKeyValues):
                raise ValueError(
                    f"the cache is a {type(past_key_values).__name__}: leave it out to start a new one"
                )
            check_new_tokens(attention_mask, input_ids)
            logits = past_key_values.step(self.model, input_ids)[:, kept]
        elif use_cache and not torch.is_grad_enabled() and cu_seqlens is None:
            logits, past_key_values = self._begin(input_ids, attention_mask, kept)
        else:
            padded = attention_mask is not None and not bool(attention_mask.all())
            states = self.model.states(input_ids, cu_seqlens, attention_mask if padded else None)
            logits = self.model.head(states[:, kept])
        loss = None
        if labels is not None:
            labels = _without_first(labels, attention_mask, cu_seqlens)
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, **others
            )
        out = CausalLMOutputWithPast(loss=loss, logits=logits, **{_CACHE: past_key_values})
        return out if return_dict is not False else out.to_tuple()

    def _begin(
        self, tokens: Tensor, attention_mask: Tensor | None, kept: slice | Tensor
    ) -> tuple[Tensor, NSAPastKeyValues]:
        """Logits of a prompt, and the cache that it leaves."""
        mask = torch.ones_like(tokens) if attention_mask is None else attention_mask
        alignment = alignment_of(mask, tokens)
        past = NSAPastKeyValues(self.model, alignment.lengths, tokens.shape[1])
        states = alignment.put_back(self.model.prefill(alignment.take(tokens), past.caches))
        return self.model.head(states[:, kept]), past


def _without_first(labels: Tensor, attention_mask: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
    """Labels [B, T] with NO_TARGET at the first token of every sequence."""
    if attention_mask is not None:
        behind_padding = F.pad(attention_mask[:, :-1] == 0, (1, 0))
        labels = labels.masked_fill(behind_padding, NO_TARGET)
    if cu_seqlens is not None:
        starts = cu_seqlens[cu_seqlens < labels.shape[1]].to(labels.device, torch.int64)
        labels = labels.index_fill(1, starts, NO_TARGET)
    return labels


AutoConfig.register("nsa", NSAConfig)
AutoModelForCausalLM.register(NSAConfig, NSAForCausalLM)
