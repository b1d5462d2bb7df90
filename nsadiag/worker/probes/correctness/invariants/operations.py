"""The operations that are noted, each where torch offers it: forward, backward, collectives, clipping, scaler, optimizer, loads, epochs."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from nsadiag.worker import session
from nsadiag.worker.imports.on_import import when_imported
from nsadiag.worker.probes import budget
from nsadiag.worker.probes.autograd import backward, module_calls, module_tree
from nsadiag.worker.probes.autograd.modules import subscribe
from nsadiag.worker.probes.collectives import collectives
from nsadiag.worker.probes.collectives.call_details import argument
from nsadiag.worker.probes.correctness.fingerprints import tensors_in
from nsadiag.worker.probes.correctness.invariants import roles
from nsadiag.worker.probes.correctness.invariants.checksums import checksums
from nsadiag.worker.probes.correctness.invariants.journal import Operation, current, journal
from nsadiag.worker.probes.correctness.replicas import evenly
from nsadiag.worker.probes.patch import harmless, replaced, stands_for
from nsadiag.worker.probes.training import optimizer as steps
from nsadiag.worker.recorder import Recorder

MOST_COLLECTIVES = 64  # of one step whose tensors are read
MOST_INPUTS = 4
FEW = 16  # elements: counts, losses and flags have no more

_collectives = 0  # of this step
# In the order of their first epochs.
_samplers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_now = 0  # the step that runs


# -- one step after the other ---------------------------------------------------------------------


def _step_ended() -> None:
    # Guards itself: between two looks it runs in every step, and `harmless` would cost each a frame.
    rank = session.recorded.rank
    if rank is not None and (journal.looking or rank.box.step >= journal.wakes_at):
        _turn(rank)


@harmless
def _turn(rank: Recorder) -> None:
    global _now, _collectives
    if rank.world_size > 1:
        journal.turn(rank, _now, begins=rank.box.step)
        _now, _collectives = rank.box.step, 0
        _listen(journal.looking)


def _listen(now: bool) -> None:
    """To calls of the step that begins, or no more."""
    each: list[tuple[list[Any], Any]] = [
        (module_calls.on_call, _forward),
        (backward.on_backward, _backward),
        (collectives.on_issue, _issued),
        (steps.before_step, _before_step),
    ]
    for subscribers, subscriber in each:
        if now and subscriber not in subscribers:
            subscribers.append(subscriber)
        elif not now and subscriber in subscribers:
            subscribers.remove(subscriber)


# -- operations -----------------------------------------------------------------------------------


@harmless
def _forward(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if current() is None or not torch.is_grad_enabled() or not module_tree.has_parameters(module):
        return
    roles.met(module)
    evaluating = not module.__dict__.get("training", True)
    given = list(tensors_in([*args, *kwargs.values()]))[:MOST_INPUTS] if journal.valued else []
    journal.note(
        "forward",
        name=type(module).__name__,
        evaluating=evaluating or None,
        depends_on_mode=(
            evaluating and any(_depends_on_mode(m) for _, m in module_tree.named_modules(module))
        )
        or None,
        values=checksums([(f"input {n}", tensor) for n, tensor in enumerate(given)]),
    )


def _depends_on_mode(module: torch.nn.Module) -> bool:
    norms, dropouts = torch.nn.modules.batchnorm._BatchNorm, torch.nn.modules.dropout._DropoutNd
    return isinstance(module, norms) or (isinstance(module, dropouts) and module.p > 0)


@harmless
def _backward(tensors: Any, gradients: Any) -> None:
    if current() is None:
        return
    loss = (
        tensors if isinstance(tensors, torch.Tensor) and tensors.numel() == 1 and gradients is None else None
    )
    known = loss is not None and not loss.is_complex() and (journal.valued or loss.device.type == "cpu")
    kept = [number for number, held in roles.living() if _is_kept(held)]
    journal.note("backward", value=float(loss.detach()) if known and loss is not None else None, kept=kept)


def _is_kept(optimizer: Any) -> bool:
    """Whether gradients of before are still there: by the first one, which on a GPU nobody waits for."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None:
                plain = type(gradient) is torch.Tensor and gradient.layout == torch.strided
                return plain and (gradient.device.type == "cpu" or journal.valued) and bool(gradient.any())
    return False


@harmless
def _issued(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation | None:
    global _collectives
    if current() is None or op not in collectives.COLLECTIVES or "object" in op or op == "barrier":
        return None
    given = argument(args, kwargs, "tensor", 0)
    tensors = [
        t for t in (given if isinstance(given, list | tuple) else [given]) if isinstance(t, torch.Tensor)
    ]
    _collectives += 1
    large = journal.valued and _collectives <= MOST_COLLECTIVES and op == "all_reduce"
    reduced = [(f"{n}", t) for n, t in enumerate(tensors[:1]) if large and t.numel() > FEW]
    return journal.note(
        "collective",
        name=op,
        reduces=_reduction(op, args, kwargs),
        group=collectives.group_name(collectives.group_of(args, kwargs)),
        roles=roles.roles_of(tensors),
        shape=list(tensors[0].shape) if tensors else None,
        inside="backward" if backward.now.depth else "forward" if module_calls.calls.depth else None,
        values=checksums(reduced),
    )


def _reduction(op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    position = {"all_reduce": 1, "reduce": 2, "reduce_scatter": 2, "reduce_scatter_tensor": 2}.get(op)
    if position is None:
        return None
    asked = argument(args, kwargs, "op", position)
    return "SUM" if asked is None else str(asked).rpartition(".")[2]


@harmless
def _clipped(norm: Any, limit: Any) -> None:
    if current() is None or not journal.looking:
        return
    own = isinstance(norm, torch.Tensor) and not hasattr(norm, "_local_tensor")
    known = own and norm.numel() == 1 and (journal.valued or norm.device.type == "cpu")
    most = float(limit) if isinstance(limit, int | float) else None
    journal.note("clip", value=float(norm.detach()) if known else None, limit=most)


@harmless
def _unscaled(optimizer: Any) -> None:
    if current() is not None and journal.looking:
        journal.note("unscale")


@harmless
def _before_step(optimizer: Any) -> None:
    if current() is None:
        return
    number, held = roles.stepping(optimizer), roles.held_by(optimizer)
    graded = sum(p.grad is not None for _, p in held)
    details: dict[str, Any] = {
        "settings": _settings(optimizer),
        "held": sum(p.requires_grad for _, p in held),
        "graded": graded,
        "of": len(held),
    }
    if journal.valued:
        chosen = evenly(held)
        details["values"] = checksums(chosen)
        made = [(name, p.grad) for name, p in chosen if p.grad is not None]
        journal.note("used", place="", optimizer=number, values=checksums(made))
        journal.note("buffers", place="", values=checksums(evenly(roles.buffers())))
    journal.note("step", optimizer=number, name=type(optimizer).__name__, **details)


def _settings(optimizer: Any) -> list[str]:
    """Hyperparameters of each group, as text; a tensor may be on a GPU that nobody waits for."""
    plain = (bool, int, float, str, tuple)
    return [
        " ".join(f"{k}={v}" for k, v in sorted(group.items()) if k != "params" and isinstance(v, plain))
        for group in optimizer.param_groups[:16]
    ]


@harmless
def _loaded(module: torch.nn.Module, state: Any, result: Any) -> None:
    rank = current()
    if rank is None:
        return
    missing, unexpected = len(result.missing_keys), len(result.unexpected_keys)
    name = type(module).__name__
    journal.note("load", always=rank, name=name, given=len(state), missing=missing, unexpected=unexpected)


@harmless
def _epoch(sampler: Any) -> None:
    rank = current()
    if rank is not None:
        journal.note(
            "epoch",
            always=rank,
            name=type(sampler).__name__,
            epoch=int(sampler.epoch),
            shuffles=bool(sampler.shuffle) or None,
            sampler=_samplers.setdefault(sampler, len(_samplers)),
            seed=int(sampler.seed),
            length=int(sampler.num_samples),
            replicas=int(sampler.num_replicas),
            replica=int(sampler.rank),
        )


# -- where they are ---------------------------------------------------------------------------------


def _around_clip(call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        norm = call(*args, **kwargs)
        _clipped(norm, args[1] if len(args) > 1 else kwargs.get("max_norm"))
        return norm

    return clip_grad_norm_


def _around_unscale(call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def unscale_(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        _unscaled(optimizer)
        return call(self, optimizer, *args, **kwargs)

    return unscale_


def _around_load(call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def load_state_dict(self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(self, state_dict, *args, **kwargs)
        _loaded(self, state_dict, result)
        return result

    return load_state_dict


def _around_order(call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def __iter__(self: Any) -> Any:
        _epoch(self)
        return call(self)

    return __iter__


def _wrap_sampler(stack: contextlib.ExitStack) -> None:
    sampler = sys.modules["torch.utils.data.distributed"].DistributedSampler
    stack.enter_context(replaced(sampler, "__iter__", _around_order(sampler.__iter__)))


@contextlib.contextmanager
def operations() -> Iterator[None]:
    """Operations of the steps that are looked at, in their order, with the user's lines (invariants.jsonl)."""
    from torch.amp.grad_scaler import GradScaler

    clip, module = torch.nn.utils.clip_grad, torch.nn.Module
    with contextlib.ExitStack() as stack:
        stack.enter_context(module_calls.observed_calls())
        subscribe(stack, budget.on_step, _step_ended)
        stack.callback(journal.clear)
        stack.callback(roles.forget)
        stack.callback(_listen, False)
        _listen(True)
        stack.enter_context(replaced(clip, "clip_grad_norm_", _around_clip(clip.clip_grad_norm_)))
        stack.enter_context(replaced(GradScaler, "unscale_", _around_unscale(GradScaler.unscale_)))
        stack.enter_context(replaced(module, "load_state_dict", _around_load(module.load_state_dict)))
        when_imported("torch.utils.data.distributed", functools.partial(_wrap_sampler, stack))
        yield


@contextlib.contextmanager
def invariants() -> Iterator[None]:
    """Checksums of what these operations touch as well: inputs, losses, gradients, parameters, buffers."""
    journal.valued = True
    try:
        yield
    finally:
        journal.valued = False
