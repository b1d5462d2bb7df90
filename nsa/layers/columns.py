"""The column layout of a layer's single projection: queries, and keys and values of every branch."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from nsa.layers.rope import rotate


class Projected(NamedTuple):
    """Queries [B, T, H, D], rotated; keys and values [B, T, Hkv, D] by branch, and the unrotated input of φ under "compressed"."""

    q: Tensor
    k: dict[str, Tensor]
    v: dict[str, Tensor]


class Columns:
    """The order of the columns of the projection, and how to split them.

    First come the queries and the keys of the selected and sliding branches, adjacent, so that one operation rotates
    them all; then the keys of the compressed branch, which φ reads before they are rotated; then the values of
    all branches, in the order of their keys. Without the compressed branch selection is scored by the selected
    branch's own keys, also before their rotation.
    """

    def __init__(
        self, branches: tuple[str, ...], n_heads: int, n_kv_heads: int, head_dim: int, v_head_dim: int
    ) -> None:
        self._rotated = [name for name in branches if name != "compressed"]
        self._raw = [name for name in branches if name == "compressed"]
        self._heads = [n_heads, *[n_kv_heads] * len(self._rotated)]
        self._n_kv_heads, self._head_dim, self._v_head_dim = n_kv_heads, head_dim, v_head_dim
        n_raw, n_values = n_kv_heads * len(self._raw), n_kv_heads * len(branches)
        self._widths = [sum(self._heads) * head_dim, n_raw * head_dim, n_values * v_head_dim]
        self.width = sum(self._widths)

    def split(self, projected: Tensor, turn: Tensor) -> Projected:
        """Split [B, T, width]; `turn` is the rotation of each token, as returned by `rope.rotation`."""
        unrotated, raw, values = projected.split(self._widths, dim=-1)
        unrotated = unrotated.unflatten(-1, (-1, self._head_dim))
        q, *rotated = rotate(unrotated, turn).split(self._heads, dim=2)
        k = dict(zip(self._rotated, rotated, strict=True))
        if self._raw:
            k["compressed"] = raw.unflatten(-1, (-1, self._head_dim))
        elif "selected" in k:
            own = dict(zip(self._rotated, unrotated.split(self._heads, dim=2)[1:], strict=True))
            k["compressed"] = own["selected"].detach()
        v = values.unflatten(-1, (-1, self._v_head_dim)).split(self._n_kv_heads, dim=2)
        return Projected(q, k, dict(zip([*self._rotated, *self._raw], v, strict=True)))
