"""Collectives of a step: which operation over which group, what they carry, and checksums of what is reduced."""

from __future__ import annotations

from typing import Any

import torch

from nsadiag.worker.probes.autograd import backward, module_calls
from nsadiag.worker.probes.collectives import collectives
from nsadiag.worker.probes.collectives.call_details import argument
from nsadiag.worker.probes.correctness.invariants import roles
from nsadiag.worker.probes.correctness.invariants.checksums import checksums
from nsadiag.worker.probes.correctness.invariants.flow import flow
from nsadiag.worker.probes.correctness.invariants.journal import Operation, current, journal
from nsadiag.worker.probes.correctness.invariants.written import since_backward
from nsadiag.worker.probes.patch import harmless

MOST_COLLECTIVES = 64  # of one step whose tensors are read
FEW = 16  # elements: counts, losses and flags have no more

_collectives = 0  # of this step


def turn() -> None:
    """The next step begins."""
    global _collectives
    _collectives = 0
    since_backward.forget()


@harmless
def issued(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation | None:
    global _collectives
    if current() is None or op not in collectives.COLLECTIVES or "object" in op or op == "barrier":
        return None
    given = argument(args, kwargs, "tensor", 0)
    tensors = [
        t for t in (given if isinstance(given, list | tuple) else [given]) if isinstance(t, torch.Tensor)
    ]
    flow.exchanged(op, args, kwargs)
    _collectives += 1
    large = journal.valued and _collectives <= MOST_COLLECTIVES and op == "all_reduce"
    reduced = [(f"{n}", t) for n, t in enumerate(tensors[:1]) if large and t.numel() > FEW]
    carried = roles.roles_of(tensors)
    of_gradients = not backward.now.depth and any(role.startswith("gradient") for role in carried)
    return journal.note(
        "collective",
        name=op,
        reduces=_reduction(op, args, kwargs),
        group=collectives.group_name(collectives.group_of(args, kwargs)),
        roles=carried,
        shape=list(tensors[0].shape) if tensors else None,
        inside="backward" if backward.now.depth else "forward" if module_calls.calls.depth else None,
        written=(of_gradients and since_backward.first_asked()) or None,
        values=checksums(reduced),
    )


def _reduction(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    position = {"all_reduce": 1, "reduce": 2, "reduce_scatter": 2, "reduce_scatter_tensor": 2}.get(op)
    if position is None:
        return None
    asked = argument(args, kwargs, "op", position)
    return "SUM" if asked is None else str(asked).rpartition(".")[2]
