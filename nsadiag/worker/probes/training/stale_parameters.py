"""Parameters that are trained and not held by the optimizer: a layer that replaced another after the optimizer was made gets gradients
that nobody uses, while the optimizer goes on holding the one that no forward enters; or a bias is in no group of parameters.

Looked for before the steps that follow steps 2, 4, 8, ... of the job, and at an optimizer's own second and fourth;
written are only looks that found both sides of it, or the rest of such a parameter's module held (unheld.jsonl).
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from nsadiag.evidence.layout import append_json_line
from nsadiag.worker import session
from nsadiag.worker.probes import budget
from nsadiag.worker.probes.autograd import module_calls, module_tree, roots
from nsadiag.worker.probes.autograd.modules import subscribe
from nsadiag.worker.probes.patch import harmless
from nsadiag.worker.probes.training import optimizer
from nsadiag.worker.probes.values import stepped_by
from nsadiag.worker.recorder import Recorder

MOST_ROWS = 12
LOOKED_AT = (2, 4)  # of a new optimizer's own steps
SHOWN = 16

# Steps that new optimizers have made, by id: they may define __eq__.
_fresh: dict[int, tuple[weakref.ref[Any], int]] = {}
_doubled = False
_rows = 0


class _Housed(NamedTuple):
    """A parameter, with its name, and the module that it lies in by its id: another model has modules of the same names."""

    name: str
    parameter: torch.Tensor
    module: int


def _in_models(models: list[torch.nn.Module]) -> dict[int, _Housed]:
    """By id: all that is in these, as they are now."""
    return {
        id(p): _Housed(module_calls.qualified(name), p, id(module))
        for root in models
        for name, p, module in module_tree.housed_parameters(root)
    }


def _held() -> set[int]:
    """By every optimizer there is: one that makes its first step later holds its parameters now."""
    # The type alone: a proxy would be asked what it stands for, and might go and fetch it.
    living = [o for o in gc.get_objects() if issubclass(type(o), torch.optim.Optimizer)]
    return {id(p) for optimizer in living for p in stepped_by(optimizer)}


def _look(rank: Recorder, stepping: Any) -> None:
    global _rows
    mine = stepped_by(stepping)
    own = {id(p) for p in mine}
    models = _in_models(roots.living())
    stale = [p for p in mine if p.grad is None and p.requires_grad and id(p) not in models]
    graded = {
        i: each
        for i, each in _in_models(roots.ours(roots.living())).items()
        if (p := each.parameter).grad is not None and p.requires_grad and module_tree.is_quiet(p)
    }
    unheld = {i: each for i, each in graded.items() if i not in own}
    if not stale:
        unheld = _beside_held(unheld, [each for i, each in models.items() if i in own])
    held = _held() if unheld else set()
    loose = [each for i, each in unheld.items() if i not in held]
    if not loose:
        return
    _rows += 1
    append_json_line(
        rank.directory.unheld,
        {
            "step": rank.box.step,
            "optimizer": type(stepping).__name__,
            "of": len(mine),
            "graded": len(graded),
            # Of what replaced what the numbers are alike: layers have as many parameters of each rank of tensor.
            "stale_count": len(stale),
            "unheld_count": len(loose),
            "alike": sorted(p.ndim for p in stale) == sorted(each.parameter.ndim for each in loose),
            "stale": [list(p.shape) for p in stale[:SHOWN]],
            "unheld": [[name, list(p.shape), *_sums(p)] for name, p, _ in loose[:SHOWN]],
            "gradients": [_sums(p.grad)[1] for _, p, _ in loose[:SHOWN]],
        },
    )


def _beside_held(unheld: dict[int, _Housed], held: list[_Housed]) -> dict[int, _Housed]:
    """Those in modules of which the optimizer holds another parameter.

    A layer may be left out on purpose, a layer's bias or its weight hardly ever: unless what is held is the lesser part of
    all such layers, as where biases alone are trained.
    """
    modules = {each.module for each in held}
    beside = {i: each for i, each in unheld.items() if each.module in modules}
    torn = {each.module for each in beside.values()}
    chosen = sum(each.parameter.numel() for each in held if each.module in torn)
    return beside if sum(each.parameter.numel() for each in beside.values()) <= chosen else {}


def _sums(tensor: Any) -> list[float | None]:
    """The sums over the part on this rank; none over a sparse one."""
    with torch.no_grad():
        own = getattr(tensor, "_local_tensor", tensor).detach()
        if own.layout != torch.strided:
            return [None, None]
        own = own.double()
        both: list[float | None] = torch.stack((own.sum(), own.abs().sum())).tolist()
        return both


def _listen(now: bool) -> None:
    """To optimizers' steps."""
    if now and _before_step not in optimizer.before_step:
        optimizer.before_step.append(_before_step)
    elif not now and _before_step in optimizer.before_step:
        optimizer.before_step.remove(_before_step)


def _on_doubling(doubled: bool) -> None:
    global _doubled
    _doubled = doubled
    _listen(doubled or bool(_fresh))


def _on_new(made: Any) -> None:
    # One that is gone before its fourth is waited for no longer.
    key = id(made)
    _fresh[key] = weakref.ref(made, lambda _: _fresh.pop(key, None)), 0
    _listen(True)


@harmless
def _before_step(stepping: Any) -> None:
    known = _fresh.get(id(stepping))
    made = (known[1] if known is not None else LOOKED_AT[-1]) + 1
    if known is not None and made < LOOKED_AT[-1]:
        _fresh[id(stepping)] = known[0], made
    else:
        _fresh.pop(id(stepping), None)
    rank = session.current()
    if rank is not None and _rows < MOST_ROWS and (made in LOOKED_AT or (_doubled and rank.box.step > 1)):
        _look(rank, stepping)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Parameters that get gradients and that no optimizer holds, where one holds what is in no model (unheld.jsonl)."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(module_calls.observed_calls())
        subscribe(stack, optimizer.on_new, _on_new)
        subscribe(stack, budget.on_doubling, _on_doubling)
        stack.callback(_fresh.clear)
        stack.callback(_listen, False)
        yield
