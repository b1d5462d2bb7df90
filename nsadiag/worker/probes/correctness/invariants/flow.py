"""The flow of values through the modules of the first steps: what each is given and returns, and whether gradients can come back.

A value is known again by its checksum, so that a copy, a view or a detached tensor is the value that it was made of.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch

from nsadiag.worker.place import user_place
from nsadiag.worker.probes.autograd import backward, module_calls, module_tree
from nsadiag.worker.probes.correctness.invariants import roles
from nsadiag.worker.probes.correctness.invariants.checksums import exact_sums, is_captured
from nsadiag.worker.probes.correctness.invariants.journal import Operation, current, journal
from nsadiag.worker.probes.patch import harmless
from nsadiag.worker.probes.values import own_elements, tensors_among

STEPS = 6
MOST_CALLS = 96  # of one step
MOST_TENSORS = 3  # on each side of one call
MOST_NODES = 256  # of the graph behind what a collective is given
SINK = "_DDPSinkBackward"
FEW = 16  # elements: counts, losses and flags have no more


@dataclass
class _Call:
    number: int  # of its qualified name
    name: str
    place: str
    module: weakref.ref[torch.nn.Module] | None  # none of a collective
    given: list[tuple[int, bool]]  # index among the sums, and whether it carries a gradient
    made: list[tuple[int, bool]]
    leaves: frozenset[int] = (
        frozenset()
    )  # by id: what a collective is given was computed from these parameters


class Flow:
    """The calls of the step that runs now."""

    def __init__(self) -> None:
        self.following = False
        self._calls: list[_Call] = []
        self._open: list[_Call | None] = []
        self._sums: list[torch.Tensor] = []
        self._thread = 0  # that runs the steps: others have flows of their own

    def turn(self, step: int, *, valued: bool) -> None:
        """Step `step` begins."""
        self._forget()
        self._thread = get_ident()
        self.follow(valued and step < STEPS)

    def follow(self, now: bool) -> None:
        if now != self.following:
            self.following = now
            module_calls.inner = self if now else None
            module_calls.observe_all(now)
        if not now:
            self._forget()

    def _forget(self) -> None:
        self._calls, self._open, self._sums = [], [], []

    @harmless
    def entered(self, module: torch.nn.Module, nested: int, args: Any, kwargs: Any) -> None:
        """A module is called."""
        if get_ident() != self._thread:
            return
        del self._open[nested:]
        given = [t for t in tensors_among((*args, *kwargs.values())) if _is_passed(t)][:MOST_TENSORS]
        # What vmap and the like pass on are no values that anybody could read.
        transformed = torch._C._are_functorch_transforms_active()
        trains = torch.is_grad_enabled() or any(t.requires_grad for t in given) or any(self._open)
        if (
            transformed
            or backward.now.depth
            or current() is None
            or not (trains and journal.valued)
            or len(self._calls) >= MOST_CALLS
        ):
            self._open.append(None)
            return
        number = module_calls.known_number(module)
        call = _Call(number, type(module).__name__, user_place(), weakref.ref(module), self._noted(given), [])
        self._calls.append(call)
        self._open.append(call)

    @harmless
    def left(self, nested: int, output: Any) -> None:
        """It has returned."""
        if get_ident() != self._thread:
            return
        call = self._open[nested] if nested < len(self._open) else None
        del self._open[nested:]
        if call is not None:
            call.made = self._noted([t for t in tensors_among((output,)) if _is_passed(t)][:MOST_TENSORS])

    def exchanged(self, op: str, args: Any, kwargs: Any) -> None:
        """A collective is called, outside backward: its results carry no gradient."""
        mine = self.following and journal.valued and get_ident() == self._thread
        if mine and not backward.now.depth and len(self._calls) < MOST_CALLS:
            given = [t for t in tensors_among((*args, *kwargs.values())) if _is_passed(t)][-MOST_TENSORS:]
            # Whoever turns gradients off means to hand on values alone.
            leaves = _leaves(given) if torch.is_grad_enabled() else frozenset()
            self._calls.append(_Call(0, op, user_place(), None, self._noted(given), [], leaves))

    def _noted(self, tensors: list[torch.Tensor]) -> list[tuple[int, bool]]:
        found = []
        for tensor in tensors:
            found.append((len(self._sums), tensor.requires_grad))
            self._sums += exact_sums([tensor])
        return found

    def at(self, optimizer: Any) -> list[Operation]:
        """The calls so far, each with how many of its parameters this optimizer trains, and how many of these have a gradient."""
        rank = current()
        if not self._calls or not self._sums or rank is None or is_captured():
            return []
        names = rank.names.by_number()
        exact = torch.stack([s.to(self._sums[0].device) for s in self._sums]).tolist()
        held = {id(p): p for _, p in roles.held_by(optimizer) if p.requires_grad and own_elements(p)}
        graded = _with_gradient(held)
        rows = []
        for call in self._calls:
            module = call.module() if call.module is not None else None
            own = (
                [id(p) for _, p in module_tree.named_parameters(module)]
                if module is not None
                else call.leaves
            )
            mine = [key for key in own if key in held]
            rows.append(
                {
                    "name": names.get(call.number, call.name),
                    "place": call.place,
                    "exchanges": call.module is None,
                    "held": len(mine),
                    "graded": sum(key in graded for key in mine),
                    "given": [[exact[n], carries] for n, carries in call.given],
                    "made": [[exact[n], carries] for n, carries in call.made],
                }
            )
        return rows


def _is_passed(tensor: torch.Tensor) -> bool:
    plain = tensor.layout == torch.strided and tensor.device.type != "meta"
    large = plain and tensor.is_floating_point() and tensor.numel() > FEW
    return large and not hasattr(tensor, "_local_tensor") and module_tree.is_quiet(tensor)


def _leaves(tensors: list[torch.Tensor]) -> frozenset[int]:
    """The parameters that these were computed from, by id; of a large graph the nearest."""
    pending = [(t.grad_fn, t.output_nr) for t in tensors if t.grad_fn is not None]
    met, found = set(pending), set()
    while pending and len(met) <= MOST_NODES:
        node, output = pending.pop(0)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.add(id(variable))
        # All outputs of a model in DDP pass through one node, each for itself.
        edges = node.next_functions
        for edge in edges[output : output + 1] if type(node).__name__ == SINK else edges:
            if edge[0] is not None and edge not in met:
                met.add(edge)
                pending.append(edge)
    return frozenset(found)


def _with_gradient(held: dict[int, torch.Tensor]) -> set[int]:
    """Those with a gradient that is not zero everywhere."""
    made = {
        key: g
        for key, p in held.items()
        if (g := p.grad) is not None and g.layout == torch.strided and module_tree.is_quiet(g)
    }
    if not made:
        return set()
    own = [getattr(g, "_local_tensor", g).detach() for g in made.values()]
    counts = torch.stack([g.count_nonzero().to(own[0].device) for g in own]).tolist()
    return {key for key, count in zip(made, counts, strict=True) if count}


flow = Flow()
