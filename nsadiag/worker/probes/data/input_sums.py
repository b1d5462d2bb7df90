"""Sums of the model's inputs while it trains: ranks whose loaders know nothing of one another may all get the same.

Of the first outermost call after steps 0, 1, 2, 4, 8, ...: where the batch is on a GPU each costs a wait for it. In
between nobody is called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from nsadiag.evidence.layout import append_json_line
from nsadiag.worker import session
from nsadiag.worker.probes import budget
from nsadiag.worker.probes.autograd import module_calls, module_tree
from nsadiag.worker.probes.autograd.modules import subscribe
from nsadiag.worker.probes.correctness.replicas import sums_of
from nsadiag.worker.probes.patch import harmless
from nsadiag.worker.probes.values import tensors_among
from nsadiag.worker.recorder import Recorder

MOST_TENSORS = 4

_next = 0  # the step whose first call is looked at


def _listen(now: bool) -> None:
    """To calls of the step that begins, or no more."""
    if now and _called not in module_calls.on_call:
        module_calls.on_call.append(_called)
    elif not now and _called in module_calls.on_call:
        module_calls.on_call.remove(_called)


def _called(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    # Of all calls of a step the first is looked at: the frame of a guard is for that one.
    rank = session.current()
    if (
        rank is not None
        and rank.box.step >= _next
        and module_tree.is_training(module)
        and torch.is_grad_enabled()
    ):
        _note(rank, args, kwargs)


@harmless
def _note(rank: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    global _next
    step = rank.box.step
    _next = max(2 * step, 1)
    if rank.world_size < 2 or step & (step - 1):
        return
    found = list(_tensors((*args, *kwargs.values())))[:MOST_TENSORS]
    sums = sums_of(found)
    if sums is not None:
        rows = [[list(t.shape), *each] for t, each in zip(found, sums, strict=True)]
        append_json_line(rank.directory.given, {"step": step, "tensors": rows})


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for tensor in tensors_among(values):
        if tensor.numel() and not tensor.is_complex() and not hasattr(tensor, "_local_tensor"):
            yield tensor


@contextlib.contextmanager
def given() -> Iterator[None]:
    """Sums over what the outermost module is called with while it trains (given.jsonl)."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(module_calls.observed_calls())
        subscribe(stack, budget.on_doubling, _listen)
        stack.callback(_listen, False)
        _listen(True)
        yield
