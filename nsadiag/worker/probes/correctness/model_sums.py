"""Sums over the models that a rank evaluates: an average of the weights that one rank alone keeps up differs from its peers'.

Taken at a model's evaluating calls 1, 2, 4, 8, ...: what is in DDP is compared after its steps (`replicas`), a copy is not.
Such a model is often called long after the steps in which every call is looked at: it is known by its `eval()`.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from nsadiag.evidence.layout import append_json_line
from nsadiag.worker import session
from nsadiag.worker.place import user_place
from nsadiag.worker.probes.autograd import module_calls, module_tree
from nsadiag.worker.probes.autograd.modules import subscribe
from nsadiag.worker.probes.correctness.replicas import evenly, sums_of
from nsadiag.worker.probes.patch import harmless, replaced, stands_for

MOST_ROWS = 64
STATISTICS = ("running_mean", "running_var")

# By id, checked through the weak reference: modules may define __eq__.
_known: dict[int, tuple[weakref.ref[torch.nn.Module], str]] = {}
_of_type: Counter[str] = Counter()
_calls: Counter[str] = Counter()
_rows = 0


@harmless
def _called(module: torch.nn.Module) -> None:
    global _rows
    rank = session.current()
    if rank is None or rank.world_size < 2 or _rows >= MOST_ROWS or torch.is_grad_enabled():
        return
    # A loss, say, of which some jobs make one in every step: its name would be a new one each time.
    if not module_tree.has_parameters(module):
        return
    name = _name(module)
    _calls[name] += 1
    call = _calls[name]
    if call & (call - 1):
        return
    chosen = evenly(
        [(n, p) for n, p in module_tree.named_parameters(module) if p.numel() and p.is_floating_point()]
    )
    if not chosen or any(hasattr(p, "_local_tensor") for _, p in chosen):
        return
    kept = evenly([each for each in module_tree.named_buffers(module) if each[0].endswith(STATISTICS)])
    sums = sums_of([tensor for _, tensor in (*chosen, *kept)])
    if sums is None:
        return
    _rows += 1
    rows = [
        [module_calls.qualified(n), list(tensor.shape), *each]
        for (n, tensor), each in zip((*chosen, *kept), sums, strict=True)
    ]
    append_json_line(
        rank.directory.evaluated,
        {
            "model": name,
            "call": call,
            "step": rank.box.step,
            "place": user_place(),
            "parameters": rows[: len(chosen)],
            **({"buffers": rows[len(chosen) :]} if kept else {}),
        },
    )


def _name(module: torch.nn.Module) -> str:
    """`ModelEma`, `Net`, `Net 2`: the same on all ranks that evaluate in one order."""
    known = _known.get(id(module))
    if known is None or known[0]() is not module:
        kind = type(module).__name__
        _of_type[kind] += 1
        known = weakref.ref(module), kind if _of_type[kind] == 1 else f"{kind} {_of_type[kind]}"
        _known[id(module)] = known
    return known[1]


def _observed(call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def eval(self: torch.nn.Module) -> Any:
        _expect(type(self))
        return call(self)

    return eval


@harmless
def _expect(owner: type[torch.nn.Module]) -> None:
    # Layers that are frozen one by one are no models, and every call of theirs would cost a frame.
    if not owner.__module__.startswith("torch.nn.modules"):
        module_calls.patches.expect(owner)


@contextlib.contextmanager
def evaluated() -> Iterator[None]:
    """Sums over the parameters and running statistics of each model that is called in eval mode and without gradients (evaluated.jsonl)."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(module_calls.observed_calls())
        subscribe(stack, module_calls.on_evaluating, _called)
        stack.enter_context(replaced(torch.nn.Module, "eval", _observed(torch.nn.Module.eval)))
        yield
