"""The columns of a layer's one projection: queries, and keys and values of every branch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from nsa.layers.rope import rotate


class Projected(NamedTuple):
    """Queries [B, T, H, D], rotated; keys and values [B, T, Hkv, D] by branch, and what φ reads under "compressed"."""

    q: Tensor
    k: dict[str, Tensor]
    v: dict[str, Tensor]


class Columns:
    """Queries and the keys that are rotated stand side by side, so that one operation turns them all.

    Behind them are the keys that φ reads, not rotated, and then the values, in the same order of branches. Selection
    without the compressed branch is scored by its own keys, before their rotation.
    """

    def __init__(
        self, branches: tuple[str, ...], n_heads: int, n_kv_heads: int, head_dim: int, v_head_dim: int
    ) -> None:
        self._turned = [name for name in branches if name != "compressed"]
        self._raw = [name for name in branches if name == "compressed"]
        self._heads = [n_heads, *[n_kv_heads] * len(self._turned)]
        self._n_kv_heads, self._head_dim, self._v_head_dim = n_kv_heads, head_dim, v_head_dim
        n_raw, n_values = n_kv_heads * len(self._raw), n_kv_heads * len(branches)
        self._widths = [sum(self._heads) * head_dim, n_raw * head_dim, n_values * v_head_dim]
        self.width = sum(self._widths)

    def split(self, projected: Tensor, turn: Tensor) -> Projected:
        """Take [B, T, width] apart, and rotate by `turn`."""
        unturned, raw, values = projected.split(self._widths, dim=-1)
        unturned = unturned.unflatten(-1, (-1, self._head_dim))
        q, *turned = rotate(unturned, turn).split(self._heads, dim=2)
        k = dict(zip(self._turned, turned, strict=True))
        if self._raw:
            k["compressed"] = raw.unflatten(-1, (-1, self._head_dim))
        elif "selected" in k:
            own = dict(zip(self._turned, unturned.split(self._heads, dim=2)[1:], strict=True))
            k["compressed"] = own["selected"].detach()
        v = values.unflatten(-1, (-1, self._v_head_dim)).split(self._n_kv_heads, dim=2)
        return Projected(q, k, dict(zip([*self._turned, *self._raw], v, strict=True)))
