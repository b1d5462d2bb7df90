"""Results of the first steps: loss, data, and sketches of each parameter and its gradient (parity.jsonl).

Runs that should compute the same are compared by it afterwards, whatever they are spread over. On request alone: it
reads every gradient. It adds nothing to the graph, draws no random number, and waits for the device once a step.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from time import monotonic, monotonic_ns
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from nsadiag.evidence.layout import append_json_line
from nsadiag.worker import session
from nsadiag.worker.imports.on_import import when_imported
from nsadiag.worker.probes.autograd import module_calls, module_tree, roots
from nsadiag.worker.probes.autograd.backward import now, on_backward
from nsadiag.worker.probes.autograd.modules import subscribe
from nsadiag.worker.probes.correctness.fingerprints import (
    autocast,
    digest,
    precisions,
    randomness,
    tensors_in,
)
from nsadiag.worker.probes.correctness.parameter_sketches import rows_of
from nsadiag.worker.probes.correctness.shards import Named, named, pieces_of
from nsadiag.worker.probes.patch import harmless, replaced, stands_for
from nsadiag.worker.probes.values import stepped_by
from nsadiag.worker.recorder import Recorder

STEPS = 3
PATIENCE = 4  # times as many of the first optimizer's steps, for others to take theirs
MOST_OPTIMIZERS = 8
MOST_INPUTS = 32
TOO_LONG_S = 10.0  # one look: the steps that follow go without
FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"
CLIPPING = ("clip_grad_norm_", "clip_grad_value_")


class _Step:
    """The step that runs, as known before its optimizer is called."""

    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []
        self.backwards = 0
        self.precisions: set[str] = set()
        self.inputs: list[torch.Tensor | None] = []  # by their order in a forward; summed over micro-batches
        self.position = 0
        self.random: int | None = None  # before the first forward
        self.before: int | None = None  # before this micro-batch's
        self.moved = False


_step = _Step()
_named: Named = {}  # the parameters themselves, until the last step that is compared
_optimizers: dict[int, int] = {}  # by address: in order of their first steps
_seen: Counter[int] = Counter()  # steps, by optimizer
_clips: Counter[int] = Counter()  # by address of the first parameter
_clipped: set[int] = set()  # parameters, by address, since their optimizer's last step
_scaler: weakref.ref[Any] | None = None
_over = False


@harmless
def _learn_root(root: torch.nn.Module) -> None:
    """Before its first forward: later FSDP2 may have put whole parameters where the optimizer's shards were."""
    if not _over:
        _named.update(named([root]))


@harmless
def _see_inputs(_module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Notes the inputs of an outermost module that is called for training."""
    if _over or now.depth or not torch.is_grad_enabled() or _capturing():
        return
    if _step.before is None:
        _step.before = randomness()
        _step.random = _step.before if _step.random is None else _step.random
    _step.precisions |= autocast()
    with torch.no_grad():
        for data in tensors_in([list(args), kwargs]):
            if _step.position == MOST_INPUTS:
                return
            found = digest(data)
            if _step.position == len(_step.inputs):
                _step.inputs.append(found)
            else:
                had = _step.inputs[_step.position]
                _step.inputs[_step.position] = None if had is None or found is None else had + found
            _step.position += 1


@harmless
def _see_backward(tensors: Any, gradients: Any) -> None:
    if _over or _capturing():
        return
    outputs = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    _step.backwards += 1
    _step.precisions |= precisions(outputs)
    if _step.before is not None:
        _step.moved |= randomness() != _step.before
    _step.before, _step.position = None, 0
    # A gradient handed in (a pipeline's stage) says that this is no loss.
    if gradients is None and all(output.numel() == 1 for output in outputs):
        with torch.no_grad():
            loss = torch.stack([output.detach().reshape(()).double() for output in outputs]).sum()
            scale = _scale()
            _step.losses.append(loss if scale is None else loss / scale.to(loss.device))


def _scale() -> torch.Tensor | None:
    """The gradient scaler's factor in the loss, left on the device."""
    scaler = _scaler() if _scaler is not None else None
    scale = getattr(scaler, "_scale", None)
    return scale.detach().clone() if isinstance(scale, torch.Tensor) else None


def _capturing() -> bool:
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


@harmless
def _before_step(optimizer: Any, *_: Any) -> None:
    rank = session.ensure_rank()
    if rank is None or _over or _capturing():
        return
    number = _optimizers.setdefault(id(optimizer), len(_optimizers))
    parameters = stepped_by(optimizer)
    if number < MOST_OPTIMIZERS and _seen[number] < STEPS:
        _take(rank, parameters, phase="step", optimizer=number, scale=getattr(optimizer, "grad_scale", None))
    _clipped.difference_update(map(id, parameters))
    _seen[number] += 1


@harmless
def _after_step(optimizer: Any, *_: Any) -> None:
    """The facts are those of the first optimizer's step: a job with two of them still has one loop."""
    global _step
    if _optimizers.get(id(optimizer)) == 0:
        _step = _Step()
        # One that steps now and then is not waited for.
        if min(_seen.values()) >= STEPS or _seen[0] >= PATIENCE * STEPS:
            _finish()


@harmless
def _before_clipping(parameters: list[torch.Tensor]) -> None:
    """Gradients as backward left them: what clipping makes of them hides a wrong factor."""
    rank = session.current()
    if rank is None or _over or not parameters or any(id(p) in _clipped for p in parameters):
        return
    _clipped.update(map(id, parameters))
    _clips[id(parameters[0])] += 1
    if _clips[id(parameters[0])] > STEPS or _capturing():
        return
    _take(rank, parameters, phase="clip", optimizer=None, scale=None)


def _take(
    rank: Recorder, parameters: list[torch.Tensor], *, phase: str, optimizer: int | None, scale: Any
) -> None:
    started = monotonic()
    wanted, models = {id(p): p for p in parameters if p.requires_grad}, roots.living()
    if optimizer == 0 and not _seen[0]:
        # What is not trained must be the same as well.
        wanted |= {
            id(p): p
            for root in roots.ours(models)
            for _, p in module_tree.named_parameters(root)
            if not p.requires_grad
        }
    with torch.no_grad():
        pieces, gaps = pieces_of([p for p in wanted.values() if p.is_floating_point()], models, _named)
        rows, failed = rows_of(pieces, values=phase == "step")
        facts = _facts(scale) if optimizer == 0 else None
    if (gaps or failed) and not _seen[optimizer or 0]:
        rank.gap(
            f"parity: {len(gaps) + len(failed)} parameters are not compared, such as {(*gaps, *failed)[0]}"
        )
    append_json_line(
        rank.directory.parity,
        {
            "step": _seen[optimizer or 0],
            "phase": phase,
            "optimizer": optimizer,
            "t_mono_ns": monotonic_ns(),
            "unread": len(gaps) + len(failed),
            "facts": facts,
            "parameters": rows,
        },
    )
    took = monotonic() - started
    if took > TOO_LONG_S:
        rank.gap(f"parity: one snapshot took {took:.0f} s, and was the last")
        _finish()


def _finish() -> None:
    global _over
    _over = True
    _named.clear()


def _facts(scale: Any) -> dict[str, Any]:
    digests = [None if found is None else found.tolist() for found in _step.inputs]
    inputs = [found if found and all(map(math.isfinite, found)) else None for found in digests]
    losses = [loss.item() for loss in _step.losses]
    return {
        "losses": [loss if math.isfinite(loss) else None for loss in losses],
        "backwards": _step.backwards,
        "precisions": sorted(_step.precisions),
        "inputs": inputs,
        "random": _step.random,
        "drew": _step.moved,
        "scale": float(scale) if isinstance(scale, torch.Tensor | float | int) else None,
    }


# -- patches ---------------------------------------------------------------------------------------------


def _observed_clipping(call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or _over:
            return call(parameters, *args, **kwargs)
        if not isinstance(parameters, torch.Tensor):
            parameters = list(parameters)  # a generator can be read once
        _before_clipping([parameters] if isinstance(parameters, torch.Tensor) else parameters)
        return call(parameters, *args, **kwargs)

    return clip


def _observed_method(call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def clip_grad_norm_(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling() and not _over:
            _before_clipping([p for _, p in module_tree.named_parameters(self)])
        return call(self, *args, **kwargs)

    return clip_grad_norm_


def _observed_scale(call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def scale(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _scaler
        if not is_dynamo_compiling():
            _scaler = weakref.ref(self)
        return call(self, *args, **kwargs)

    return scale


def _wrap_fsdp1(stack: contextlib.ExitStack) -> None:
    owner = sys.modules[FSDP1].FullyShardedDataParallel
    stack.enter_context(replaced(owner, "clip_grad_norm_", _observed_method(owner.clip_grad_norm_)))


@contextlib.contextmanager
def parity() -> Iterator[None]:
    """Losses, data and gradients of the first steps, for a comparison with another run (parity.jsonl)."""
    from torch.amp.grad_scaler import GradScaler
    from torch.optim import optimizer as optim

    with contextlib.ExitStack() as stack:
        stack.enter_context(module_calls.observed_calls())
        subscribe(stack, module_calls.on_root, _learn_root)
        subscribe(stack, module_calls.on_call, _see_inputs)
        subscribe(stack, on_backward, _see_backward)
        stack.enter_context(replaced(GradScaler, "scale", _observed_scale(GradScaler.scale)))
        for name in CLIPPING:
            observed = _observed_clipping(getattr(torch.nn.utils, name))
            stack.enter_context(replaced(torch.nn.utils, name, observed))
        when_imported(FSDP1, functools.partial(_wrap_fsdp1, stack))
        stack.callback(optim.register_optimizer_step_pre_hook(_before_step).remove)
        stack.callback(optim.register_optimizer_step_post_hook(_after_step).remove)
        yield
