"""The losses that a backward begins with, read from the autograd graph: what they were averaged over, and with which targets.

Nothing is wrapped for it. What hooks have packed away (offloaded, or to be computed again) is left where it is.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from nsadiag.worker.interruptions import pass_on
from nsadiag.worker.probes.autograd.module_tree import is_quiet
from nsadiag.worker.probes.correctness.invariants.checksums import exact_sums
from nsadiag.worker.probes.values import tensors_among

MOST_NODES = 48  # from the root of the graph on
MOST_LOSSES = 4
MOST_ELEMENTS = 1 << 20  # of the targets
MEAN = 1  # as torch numbers reductions
LIKELIHOODS = ("NllLossBackward0", "NllLoss2DBackward0")
MEANS = ("MeanBackward0", "MeanBackward1")
SCALED = ("DivBackward0", "MulBackward0")
PRODUCTS = ("MmBackward0", "AddmmBackward0", "BmmBackward0")
MOST_BETWEEN = 12  # nodes from a likelihood to the product that its scores are
SPARED = 1 << 63  # numbers are unsigned there: -100 lies above


class _Inputs:
    """The sequences of tokens that the last forward was given."""

    def __init__(self) -> None:
        self._tokens: weakref.ref[torch.Tensor] | None = None

    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tokens = [
            t for t in tensors_among((*args, *kwargs.values())) if t.dtype == torch.long and t.ndim == 2
        ]
        self._tokens = weakref.ref(tokens[0]) if len(tokens) == 1 else None

    def at_same_places(self, targets: torch.Tensor, ignored: int) -> bool:
        """Whether the targets are the tokens without the last of each sequence: as if they had been shifted the wrong way."""
        tokens = self._tokens() if self._tokens is not None else None
        if tokens is None or tokens.shape[1] < 3 or targets.numel() != tokens[:, 1:].numel():
            return False
        counted = targets.reshape(-1) != ignored
        given = tokens[:, :-1].reshape(-1)
        alike = (targets.reshape(-1) == given) | ~counted
        follows = (targets.reshape(-1) == tokens[:, 1:].reshape(-1)) | ~counted
        return bool(counted.any() & alike.all() & ~follows.all())


inputs = _Inputs()


class Divided(NamedTuple):
    """The number that a loss was divided by last, 1 where it was not, of that the divisions alone, and the node behind all of it.

    A product with a coefficient is no division: who writes `0.5 * loss` means half of it.
    """

    number: float
    divisions: tuple[float, ...]
    behind: Any


def divided(root: Any) -> Divided:
    """Read from the root of the loss's graph, the last division first."""
    number, node = 1.0, root
    divisions: list[float] = []
    while node is not None and type(node).__name__ in SCALED:
        other = _saved(node, "other")
        if other is None or other.numel() != 1 or not float(other):
            break
        by = float(other)
        if type(node).__name__ == SCALED[0]:
            number *= by
            divisions.append(by)
        else:
            number /= by
        node = next((child for child, _ in node.next_functions if child is not None), None)
    known = math.isfinite(number) and number
    return Divided(number, tuple(divisions), node) if known else Divided(1.0, (), root)


def is_mean(node: Any) -> bool:
    """Whether a loss is an average, by the node that it comes from."""
    return type(node).__name__ in MEANS or getattr(node, "_saved_reduction", None) == MEAN


def losses(root: Any, behind: Any) -> list[dict[str, Any]]:
    """The log-likelihoods in the graph, nearest first; `behind` the divisions is the node of a loss that is only that."""
    found: list[dict[str, Any]] = []
    for node in _nodes(root):
        targets = _saved(node, "target") if type(node).__name__ in LIKELIHOODS else None
        scores = _saved(node, "self") if targets is not None else None
        if targets is None or scores is None or not 0 < targets.numel() <= MOST_ELEMENTS:
            continue
        ignored = node._saved_ignore_index
        ignored = ignored - 2 * SPARED if ignored >= SPARED else ignored
        flat = targets.reshape(-1)
        counts = torch.stack(((flat != ignored).sum(), *exact_sums([flat]))).tolist()
        order = torch.arange(flat.numel(), device=flat.device)
        is_range = bool((flat == order).all())
        row = {
            "rows": flat.numel(),
            "classes": int(scores.shape[1]),
            "direct": node is behind,
            "mean": node._saved_reduction == MEAN,
            "counted": counts[0],
            "exact": counts[1],
            "is_range": is_range,
            "compared_first": _compared_first(node, flat.numel(), int(scores.shape[1])) if is_range else 0,
            "unshifted": inputs.at_same_places(targets, ignored),
        }
        found.append({k: v for k, v in row.items() if v not in (None, False)})
        if len(found) >= MOST_LOSSES:
            break
    return found


def _compared_first(node: Any, rows: int, classes: int) -> int:
    """A checksum of the first so many of the rows that all are compared with; 0 where they are not known.

    Scores are a product with them: of ranks that gathered them in the order of ranks, these are rank 0's everywhere.
    """
    pending, met = [child for child, _ in node.next_functions if child is not None], 0
    while pending and met < MOST_BETWEEN and classes > rows:
        found = pending.pop(0)
        met += 1
        if type(found).__name__ not in PRODUCTS:
            pending += [child for child, _ in found.next_functions if child is not None]
            continue
        others = _saved(found, "mat2")
        if others is not None and others.ndim > 1 and others.shape[-1] == classes:
            return int(exact_sums([others[..., :rows]])[0])
    return 0


def _nodes(root: Any) -> Iterator[Any]:
    pending, met = [root], 0
    while pending and met < MOST_NODES:
        node = pending.pop(0)
        met += 1
        yield node
        if type(node).__name__ not in LIKELIHOODS:
            pending += [child for child, _ in node.next_functions if child is not None]


def _saved(node: Any, name: str) -> torch.Tensor | None:
    """A tensor that the node keeps for backward; None where hooks would have to fetch it, or torch does not say."""
    raw = getattr(node, f"_raw_saved_{name}", None)
    if raw is None or not hasattr(raw, "unpack_hook") or raw.unpack_hook is not None:
        return None
    try:
        kept = getattr(node, f"_saved_{name}")
    except RuntimeError as error:  # it was changed in place since, as backward is about to say
        pass_on(error)
        return None
    return kept.detach() if isinstance(kept, torch.Tensor) and is_quiet(kept) else None
