"""Arguments of `NSAForCausalLM.forward` that must agree with each other, or be refused: none is ignored."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nsa.attention.inputs import readable, values_are_free
from nsa.hf.cache import NSAPastKeyValues
from nsa.layers.rope import token_positions
from nsa.padding import borders_of, check_continued, check_mask

_OF_THE_LOSS = ("num_items_in_batch", "ignore_index", "shift_labels")


def check_others(others: dict[str, Any], labels: Tensor | None) -> dict[str, Any]:
    """The settings of the loss among `others`; ValueError for arguments that nothing would read."""
    given = {name: value for name, value in others.items() if value is not None}
    unread = [name for name in given if labels is None or name not in _OF_THE_LOSS]
    if unread:
        raise ValueError(
            f"{', '.join(unread)} would not be read: give input_ids, attention_mask, cu_seqlens, position_ids, a cache, "
            f"labels, and with labels {', '.join(_OF_THE_LOSS)}"
        )
    return given


def check_cache(cache: object, input_ids: Tensor, attention_mask: Tensor | None, cu_seqlens: object) -> None:
    """Raise ValueError for a cache of another model, and for masks and borders that do not fit it."""
    if not isinstance(cache, NSAPastKeyValues):
        raise ValueError(f"the cache is a {type(cache).__name__}: leave it out to start a new one")
    if cu_seqlens is not None:
        raise ValueError("a cache holds one sequence a row, and cu_seqlens packs several: give one of them")
    check_continued(attention_mask, input_ids, cache.rows)


def borders(
    input_ids: Tensor, attention_mask: Tensor | None, cu_seqlens: Tensor | None, position_ids: Tensor | None
) -> Tensor | None:
    """`cu_seqlens`, or those that `position_ids` give where they restart; ValueError if the arguments disagree.

    Synchronises with the device to read `position_ids`.
    """
    if attention_mask is not None:
        check_mask(attention_mask, input_ids)
    if position_ids is None:
        return cu_seqlens
    _check_shape(position_ids, input_ids)
    if attention_mask is None and cu_seqlens is None:
        return borders_of(position_ids)
    if attention_mask is not None:
        counted, kept = attention_mask.long().cumsum(1) - 1, attention_mask.bool()
    else:
        counted = token_positions(input_ids.shape[1], input_ids.device, cu_seqlens)
        kept = torch.ones_like(input_ids, dtype=torch.bool)
    if readable(position_ids) and bool(((position_ids != counted) & kept).any()):
        raise ValueError(
            "position_ids do not count the tokens of each sequence from 0, as attention_mask or cu_seqlens has them; "
            "where they restart for packed sequences, leave attention_mask out"
        )
    return cu_seqlens


def check_next_positions(position_ids: Tensor | None, input_ids: Tensor, cache: NSAPastKeyValues) -> None:
    """Raise ValueError unless `position_ids` continue the rows of the cache; read only if that does not synchronise."""
    if position_ids is None:
        return
    _check_shape(position_ids, input_ids)
    if values_are_free(position_ids) and bool((position_ids != cache.rows.tokens(input_ids.shape[1])).any()):
        held = cache.rows.lengths.tolist()
        raise ValueError(f"position_ids do not continue the {held} tokens that the cache holds of each row")


def _check_shape(position_ids: Tensor, input_ids: Tensor) -> None:
    batch, n = input_ids.shape
    if position_ids.shape not in ((1, n), (batch, n)):
        raise ValueError(
            f"position_ids is {tuple(position_ids.shape)}; it must be [B, T] = {[batch, n]}, or [1, T]"
        )
