"""Conversions between padded rows, left-aligned rows, and sequences packed into one row."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nsa.attention.inputs import check_packing, readable, values_are_free
from nsa.cache import Rows


class Packing(NamedTuple):
    """The tokens that a mask keeps, end to end in one row."""

    shape: tuple[int, int]  # B and T of the padded batch
    index: Tensor  # int64 [total], their places in the batch, row after row
    cu_seqlens: Tensor  # int32 [B + 1]

    def pack(self, x: Tensor) -> Tensor:
        """[B, T, ...] to [1, total, ...]."""
        return x.flatten(0, 1)[self.index][None]

    def unpack(self, x: Tensor) -> Tensor:
        """[1, total, ...] to [B, T, ...], 0 where the padding was."""
        out = x.new_zeros(self.shape[0] * self.shape[1], *x.shape[2:])
        return out.index_put((self.index,), x[0]).unflatten(0, self.shape)


def packing_of(attention_mask: Tensor, x: Tensor) -> Packing:
    """The packing of x [B, T, ...] by a mask [B, T], 1 at tokens and 0 at padding, which may be anywhere.

    Synchronises with the device to read the number of tokens. ValueError for a mask of another shape or other values.
    """
    check_mask(attention_mask, x)
    kept = attention_mask.bool()
    cu_seqlens = F.pad(kept.sum(1).cumsum(0), (1, 0)).to(torch.int32)
    return Packing(tuple(kept.shape), kept.flatten().nonzero().squeeze(1), cu_seqlens)


class Alignment(NamedTuple):
    """Right-padded rows, made of rows with padding anywhere."""

    order: Tensor  # int64 [B, T], the original place of each token, then of each padding
    lengths: Tensor  # int64 [B], tokens of each row

    def take(self, x: Tensor) -> Tensor:
        """Align x [B, T, ...] to the left."""
        return x[torch.arange(len(x), device=x.device)[:, None], self.order]

    def put_back(self, x: Tensor) -> Tensor:
        """Restore the original order of x [B, T, ...], with 0 at padding."""
        inside = torch.arange(x.shape[1], device=x.device) < self.lengths[:, None]
        x = x * inside.view(*inside.shape, *[1] * (x.dim() - 2))
        rows = torch.arange(len(x), device=x.device)[:, None]
        return torch.empty_like(x).index_put((rows, self.order), x)


def alignment_of(attention_mask: Tensor, x: Tensor) -> Alignment:
    """The alignment of x [B, T, ...] by a mask [B, T], 1 at tokens and 0 at padding, which may be anywhere.

    ValueError for a mask of another shape or other values and, if the mask can be read without synchronising, for a row
    without tokens, which cannot be continued.
    """
    check_mask(attention_mask, x)
    kept = attention_mask.bool()
    if values_are_free(kept) and not bool(kept.any(1).all()):
        raise ValueError(f"attention_mask has no token in row {int(kept.any(1).int().argmin())}")
    return Alignment((~kept).to(torch.int8).sort(dim=1, stable=True).indices, kept.sum(1))


def rows_of(tokens: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """Packed sequences [1, total] as rows [N, longest], right-padded with 0, and their lengths [N].

    Synchronises with the device. ValueError for borders that are out of order, or leave a sequence empty or tokens over.
    """
    check_packing(*tokens.shape, cu_seqlens, past=False)
    lengths = cu_seqlens.diff()
    if int(cu_seqlens[-1]) != tokens.shape[1] or not bool((lengths > 0).all()):
        raise ValueError(
            f"cu_seqlens is {cu_seqlens.tolist()}; prompts end at the row's {tokens.shape[1]} tokens, and none is empty"
        )
    rows = tokens.new_zeros(len(lengths), int(lengths.max()))
    inside = torch.arange(rows.shape[1], device=tokens.device) < lengths[:, None].to(tokens.device)
    return rows.masked_scatter(inside, tokens[0]), lengths.to(torch.int64)


def borders_of(position_ids: Tensor) -> Tensor | None:
    """`cu_seqlens` of sequences packed into one row, from their position_ids [1, T]; None if rows [B, T] are one each.

    Synchronises with the device. ValueError for positions that do not count from 0, and for restarts in one of several rows.
    """
    token = torch.arange(position_ids.shape[-1], device=position_ids.device)
    starts = position_ids == 0
    if not torch.equal(position_ids, token - token.where(starts, 0).cummax(-1).values):
        raise ValueError("position_ids must count from 0, and restart at 0 where a packed sequence begins")
    if int(starts.sum()) == len(position_ids):
        return None
    if len(position_ids) > 1:
        raise ValueError("position_ids restart: pack the sequences into one row, [1, T]")
    return F.pad(starts[0].nonzero()[:, 0], (0, 1), value=len(token)).to(torch.int32)


def check_lengths(lengths: Tensor, tokens: Tensor) -> None:
    """Raise ValueError unless `lengths` are those of the rows of `tokens` [B, T], each from 1 to T.

    The values are read only if that does not synchronise with a device.
    """
    batch, longest = tokens.shape
    if lengths.shape != (batch,) or lengths.dtype not in (torch.int32, torch.int64):
        shape = f"{lengths.dtype} {tuple(lengths.shape)}"
        raise ValueError(f"lengths is {shape}; it must be int32 or int64 [B] = [{batch}]")
    if values_are_free(lengths) and not bool(((lengths > 0) & (lengths <= longest)).all()):
        raise ValueError(f"lengths is {lengths.tolist()}; each must be 1 to {longest}")


def check_continued(attention_mask: Tensor | None, new: Tensor, rows: Rows) -> None:
    """Raise ValueError unless the mask is of the tokens that `rows` hold, padding included, and of the `new` ones [B, n, ...].

    New tokens have no padding, and the mask keeps as many of the earlier ones as the rows hold. The values are read only
    if that does not synchronise with a device.
    """
    if attention_mask is None:
        return
    (batch, n), seen = new.shape[:2], rows.used
    if attention_mask.shape != (batch, seen + n):
        raise ValueError(
            f"attention_mask is {tuple(attention_mask.shape)}; with a cache of {seen} tokens and {n} new ones it must be "
            f"[B, seen + new] = {[batch, seen + n]}"
        )
    if not values_are_free(attention_mask):
        return
    if not bool(attention_mask[:, -n:].all()):
        raise ValueError("attention_mask has padding among the tokens after a cache: pad only the prompt")
    kept, held = attention_mask[:, :-n].sum(1).tolist(), rows.lengths.tolist()
    if kept != held:
        raise ValueError(f"attention_mask keeps {kept} tokens of the rows before, and the cache holds {held}")


def check_mask(attention_mask: Tensor, x: Tensor) -> None:
    """Raise ValueError unless the mask is [B, T] with values 0 and 1; masks of pairs of tokens are not supported.

    Synchronises with the device unless the mask is bool: additive masks (0 at tokens) and numbers of documents look alike
    by shape, and would keep the wrong tokens.
    """
    if attention_mask.shape != x.shape[:2]:
        has, needed = tuple(attention_mask.shape), list(x.shape[:2])
        raise ValueError(
            f"attention_mask is {has}; it must be [B, T] = {needed}, 1 at tokens and 0 at padding"
        )
    if attention_mask.dtype == torch.bool or not readable(attention_mask):
        return
    others = attention_mask[(attention_mask != 0) & (attention_mask != 1)]
    if len(others):
        raise ValueError(
            f"attention_mask holds {others[0].item():g}; it must be 1 at tokens and 0 at padding, and is not added to scores: "
            "give `mask == 0` for an additive mask, and cu_seqlens for documents"
        )
