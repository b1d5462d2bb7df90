"""The model for transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from nsa.attention.compressed import BlockCompression
from nsa.hf.arguments import borders, check_cache, check_next_positions, check_others
from nsa.hf.cache import NSAPastKeyValues
from nsa.hf.configuration import NSAConfig
from nsa.model import INIT_STD, NO_TARGET, NSAModel
from nsa.padding import alignment_of, packing_of
from nsa.training.recomputation import apply_activation_checkpointing

Restore = Callable[
    [Tensor], Tensor
]  # of hidden states as the blocks have them, [B, T, dim] as the caller does

# The name of the cache in model outputs: transformers 5.24 renamed past_key_values to cache.
_CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


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
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits [B, T, vocab] of `input_ids` [B, T], the mean loss of `labels` [B, T] in nats, and the cache.

        Labels are shifted here; the label of a sequence's first token, which no token predicts, is ignored.
        `attention_mask` [B, T] is 1 at tokens and 0 at padding, on either side. `cu_seqlens` [N + 1] are the borders of
        sequences packed into one row; `position_ids` [1, T] that restart at 0 say the same. Other positions are counted
        here, and `position_ids` must agree. With `logits_to_keep` n, logits are those of the last n tokens; it may also be
        a tensor of positions.

        Without gradients and labels, `use_cache` (the default) returns a cache, to be passed to the next call together with
        the next tokens, as `past_key_values` or as `cache`, its name since transformers 5.24; a mask is then of all tokens,
        those seen and the new ones. `output_hidden_states` returns the input of each block [B, T, dim] and the normed output
        of the last, 0 at padding. With labels, `num_items_in_batch`, `ignore_index` and `shift_labels` go to the loss.

        Raises ValueError for arguments that would be ignored: caches of other models, padding after a cache, a mask
        together with `cu_seqlens`, other positions, `inputs_embeds`, and `output_attentions`, which no kernel forms.
        """
        if output_attentions or (output_attentions is None and self.config.output_attentions):
            raise ValueError("output_attentions is not supported: the kernels never form attention weights")
        past = cache if past_key_values is None else past_key_values
        others = check_others(others, labels)
        if past is not None:
            check_cache(past, input_ids, attention_mask, cu_seqlens)
            check_next_positions(position_ids, input_ids, past)
        else:
            cu_seqlens = borders(input_ids, attention_mask, cu_seqlens, position_ids)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        use_cache = (self.config.use_cache if use_cache is None else use_cache) and labels is None
        begins = use_cache and not torch.is_grad_enabled() and cu_seqlens is None
        kept = _kept(logits_to_keep)
        with hidden_states_of(self.model, wanted=output_hidden_states) as hidden:
            if past is not None:
                logits = past.step(self.model, input_ids)[:, kept]
                restore = _as_they_are
            elif begins:
                logits, past, restore = self._begin(input_ids, attention_mask, kept)
            else:
                logits, restore = self._whole(input_ids, attention_mask, cu_seqlens, kept)
        loss = None
        if labels is not None:
            labels = _without_first(labels, attention_mask, cu_seqlens)
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, **others
            )
        states = tuple(restore(torch.cat(each, dim=1)) for each in hidden) or None
        out = CausalLMOutputWithPast(loss=loss, logits=logits, hidden_states=states, **{_CACHE: past})
        return out if return_dict is not False else out.to_tuple()

    def _begin(
        self, tokens: Tensor, attention_mask: Tensor | None, kept: slice | Tensor
    ) -> tuple[Tensor, NSAPastKeyValues, Restore]:
        """Logits of a prompt, the cache that it leaves, and how its rows get their order back."""
        mask = torch.ones_like(tokens) if attention_mask is None else attention_mask
        alignment = alignment_of(mask, tokens)
        past = NSAPastKeyValues(self.model, alignment.lengths, tokens.shape[1])
        states = alignment.put_back(self.model.prefill(alignment.take(tokens), past.caches))
        return self.model.head(states[:, kept]), past, alignment.put_back

    def _whole(
        self, tokens: Tensor, attention_mask: Tensor | None, cu_seqlens: Tensor | None, kept: slice | Tensor
    ) -> tuple[Tensor, Restore]:
        """Logits without a cache, and how packed rows get their padding back."""
        if attention_mask is None or bool(attention_mask.all()):
            return self.model.head(self.model.states(tokens, cu_seqlens)[:, kept]), _as_they_are
        if cu_seqlens is not None:
            raise ValueError("attention_mask and cu_seqlens both say where sequences end: give one")
        packing = packing_of(attention_mask, tokens)
        states = packing.unpack(self.model.states(packing.pack(tokens), packing.cu_seqlens))
        return self.model.head(states[:, kept]), packing.unpack


@contextmanager
def hidden_states_of(model: NSAModel, *, wanted: bool | None) -> Iterator[list[list[Tensor]]]:
    """Collect, of each block, its inputs [B, T, dim] in the forward passes in this context, and last the normed outputs.

    Empty if they are not `wanted`. A reentrant recomputation gives them without gradients.
    """
    collected: list[list[Tensor]] = [[] for _ in range(len(model.blocks) + 1)] if wanted else []
    hooks = []
    if wanted:
        for block, states in zip(model.blocks, collected, strict=False):
            hooks.append(block.norm1.register_forward_pre_hook(partial(_keep_input, states)))
        hooks.append(model.norm.register_forward_hook(partial(_keep_output, collected[-1])))
    try:
        yield collected
    finally:
        for hook in hooks:
            hook.remove()


def _keep_input(states: list[Tensor], _: nn.Module, inputs: tuple[Tensor]) -> None:
    states.append(inputs[0])


def _keep_output(states: list[Tensor], _: nn.Module, __: tuple[Tensor], output: Tensor) -> None:
    states.append(output)


def _as_they_are(x: Tensor) -> Tensor:
    return x


def _kept(logits_to_keep: int | Tensor) -> slice | Tensor:
    if not isinstance(logits_to_keep, int):
        return logits_to_keep
    return slice(-logits_to_keep, None) if logits_to_keep else slice(None)


def _without_first(labels: Tensor, attention_mask: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
    """Labels [B, T] with NO_TARGET at the first token of every sequence."""
    if attention_mask is not None:
        behind_padding = F.pad(attention_mask[:, :-1] == 0, (1, 0))
        labels = labels.masked_fill(behind_padding, NO_TARGET)
    if cu_seqlens is not None:
        starts = cu_seqlens[cu_seqlens < labels.shape[1]].to(labels.device, torch.int64)
        labels = labels.index_fill(1, starts, NO_TARGET)
    return labels
