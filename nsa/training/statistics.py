"""Statistics of the layers' gates and selections, as small tensors that stay on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from nsa.layers.sparse import NSAAttention

GATE_COLUMNS = (
    "entropy",
    "max_gate",
    "share_compressed",
    "share_selected",
    "share_sliding",
    "collapse_fraction",
)
K_COLUMNS = ("mean", "max", "rows_at_max", "rows")
COLLAPSED_SHARE = 0.95  # a head has collapsed on a token if one branch has a larger share of its gates


def layer_statistics(attentions: list[NSAAttention]) -> dict[str, Tensor]:
    """Tables with a row for each layer about its last forward, by the name of their CSV; no synchronisation."""
    gates = [gate_statistics(layer.last_gates) for layer in attentions if layer.last_gates is not None]
    counts = [layer.last_selected_counts for layer in attentions]
    selected = [selection_statistics(count) for count in counts if count is not None]
    tables = {"gate_stats": gates, "k_stats": selected}
    return {name: torch.stack(rows) for name, rows in tables.items() if rows}


def gate_statistics(gates: Tensor) -> Tensor:
    """GATE_COLUMNS of `gates` [..., 3] in 0..1 (compressed, selected, sliding), averaged over the rest.

    Entropy, in nats, is of a head's three gates as shares of their sum: ln 3 means an even mix.
    """
    gates = gates.float().flatten(0, -2)  # [N, 3]
    shares = gates / gates.sum(dim=-1, keepdim=True).clamp_min(1e-9)
    entropy = -torch.special.xlogy(shares, shares).sum(dim=-1).mean()
    collapsed = (shares.amax(dim=-1) > COLLAPSED_SHARE).float().mean()
    return torch.stack([entropy, gates.amax(dim=-1).mean(), *shares.mean(dim=0), collapsed])


def selection_statistics(counts: Tensor) -> Tensor:
    """K_COLUMNS of `counts`: the visible selected keys of each query (a row)."""
    most = counts.amax()
    rows = counts.new_tensor(counts.numel()).float()
    return torch.stack([counts.float().mean(), most.float(), (counts == most).float().sum(), rows])
