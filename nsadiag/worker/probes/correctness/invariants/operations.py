"""The operations that are noted, each where torch offers it: forward, backward, collectives, clipping, scaler, optimizer, loads, epochs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from nsadiag.worker import session
from nsadiag.worker.probes import budget, generators
from nsadiag.worker.probes.autograd import backward, module_calls, module_tree, roots
from nsadiag.worker.probes.autograd.modules import subscribe
from nsadiag.worker.probes.collectives import collectives, fsdp_units
from nsadiag.worker.probes.correctness.fingerprints import tensors_in
from nsadiag.worker.probes.correctness.invariants import exchanges, ledger, roles
from nsadiag.worker.probes.correctness.invariants.beside import note_beside
from nsadiag.worker.probes.correctness.invariants.births import births, unheld
from nsadiag.worker.probes.correctness.invariants.buckets import MOST_MADE, buckets
from nsadiag.worker.probes.correctness.invariants.checksums import (
    checksums,
    is_captured,
    own_part,
    whole_sums,
)
from nsadiag.worker.probes.correctness.invariants.flow import flow
from nsadiag.worker.probes.correctness.invariants.journal import Operation, current, journal
from nsadiag.worker.probes.correctness.invariants.losses import divided, inputs, is_mean, losses
from nsadiag.worker.probes.correctness.invariants.rounding import rounding
from nsadiag.worker.probes.correctness.invariants.states import settle, states
from nsadiag.worker.probes.correctness.invariants.written import since_backward, since_step
from nsadiag.worker.probes.correctness.replicas import evenly
from nsadiag.worker.probes.patch import harmless, replaced, stands_for
from nsadiag.worker.probes.training import optimizer as steps
from nsadiag.worker.probes.values import groups_of, own_elements, stepped_by
from nsadiag.worker.recorder import Recorder

MOST_INPUTS = 4

MOST_BACKWARDS = 8  # of a step, after which gradients are read
MOST_UNHELD = 16
STRIDE = 61  # parameters from one step that is looked at to the next
# Optimizers have all stepped by then, and what was put in after them has a gradient.
UNHELD_AT = range(2, 8)

_backwards = 0  # of this step
_modules: dict[int, tuple[weakref.ref[torch.nn.Module], int]] = {}  # by id; modules may define __eq__
_numbers = itertools.count(1)
_named: set[int] = set()  # optimizers whose parameters' names are written down
_trained: dict[int, int] = {}  # by id of a parameter, the first step that was looked at and trained it
# Of an optimizer that found no gradient: the operation, and what its parameters' versions were before it stepped.
_ungraded: tuple[weakref.ref[Any], Operation, list[int]] | None = None
# Gradients of before that the backward which runs now may add to: the optimizer's number, and the parameter with the
# gradient's identity and version.
_lying: list[tuple[int, weakref.ref[torch.Tensor], int, int]] = []
_running: Operation | None = None  # that backward
_now = 0  # the step that runs


# -- one step after the other ---------------------------------------------------------------------


def _step_ended() -> None:
    # Guards itself: between two looks it runs in every step, and `harmless` would cost each a frame.
    rank = session.recorded.rank
    if rank is None:
        return
    if journal.looking or rank.box.step >= journal.wakes_at:
        _turn(rank)
    elif journal.waiting:
        _write_what_has_come(rank)


@harmless
def _turn(rank: Recorder) -> None:
    global _now, _backwards
    if rank.world_size == 1:
        # There is no rank to compare with, nor will there be.
        journal.stop()
        flow.follow(False)
        _listen(False)
        return
    settle()
    roots.turn()
    journal.turn(rank, _now, begins=rank.box.step)
    flow.turn(rank.box.step, valued=journal.valued)
    exchanges.turn()
    _now, _backwards = rank.box.step, 0
    if not journal.looking:
        since_step.forget()  # at the next look it would be a mark of long ago
    _listen(journal.looking)


@harmless
def _write_what_has_come(rank: Recorder) -> None:
    journal.write_what_has_come(rank, rank.box.step)


def _listen(now: bool) -> None:
    """To calls of the step that begins, or no more."""
    each: list[tuple[list[Any], Any]] = [
        (module_calls.on_call, _forward),
        (backward.on_backward, _backward),
        (backward.on_backward_end, _backward_ended),
        (collectives.on_issue, exchanges.issued),
        (steps.before_step, _before_step),
        (steps.after_step, _after_step),
    ]
    for subscribers, subscriber in each:
        if now and subscriber not in subscribers:
            subscribers.append(subscriber)
        elif not now and subscriber in subscribers:
            subscribers.remove(subscriber)


# -- operations -----------------------------------------------------------------------------------


@harmless
def _forward(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    rank = current()
    if rank is None or not module_tree.has_parameters(module):
        return
    trains = torch.is_grad_enabled()
    roots.note_run(module, module_calls.owner_of(module, rank), trains=trains)
    if not trains:
        return
    if _now == 0 and journal.valued:
        # A forward may change them before there is an optimizer's step to look at.
        journal.note("drawn", place="", values=checksums(evenly(roles.our_buffers())))
    inputs.given(args, kwargs)
    evaluating = _is_evaluating(module)
    given = list(tensors_in([*args, *kwargs.values()]))[:MOST_INPUTS] if journal.valued else []
    journal.note(
        "forward",
        name=type(module).__name__,
        module=_number_of(module),
        evaluating=evaluating or None,
        depends_on_mode=(
            evaluating and any(_depends_on_mode(m) for _, m in module_tree.named_modules(module))
        )
        or None,
        random=generators.checksum() if given else None,
        drops=(bool(given) and not evaluating and _drops(module)) or None,
        values=checksums([(f"input {n}", tensor) for n, tensor in enumerate(given)]),
    )


def _number_of(module: torch.nn.Module) -> int:
    """Its number among modules that ran as the outermost, in the order of their first runs: two may be of one class."""
    known = _modules.get(id(module))
    if known is None or known[0]() is not module:
        # The number of one that is gone is not given again.
        known = _modules[id(module)] = weakref.ref(module), next(_numbers)
    return known[1]


def _is_evaluating(module: torch.nn.Module) -> bool:
    """Whether it is in eval mode, or all that it wraps: `eval()` of what DDP holds leaves DDP itself in train mode.

    Layers that are frozen one by one, as batch norms are, leave modules around them in train mode.
    """
    if not module_tree.is_training(module):
        return True
    below = (each for _, each in module_tree.named_modules(module) if each is not module)
    first = next(below, module)  # mostly it trains, and the others are not asked for
    return not module_tree.is_training(first) and not any(map(module_tree.is_training, below))


def _drops(module: torch.nn.Module) -> bool:
    dropouts = torch.nn.modules.dropout._DropoutNd
    return any(isinstance(m, dropouts) and m.p > 0 for _, m in module_tree.named_modules(module))


def _depends_on_mode(module: torch.nn.Module) -> bool:
    norms, dropouts = torch.nn.modules.batchnorm._BatchNorm, torch.nn.modules.dropout._DropoutNd
    return isinstance(module, norms) or (isinstance(module, dropouts) and module.p > 0)


@harmless
def _backward(tensors: Any, gradients: Any) -> None:
    global _running
    if current() is None:
        return
    loss = (
        tensors if isinstance(tensors, torch.Tensor) and tensors.numel() == 1 and gradients is None else None
    )
    reads = journal.valued and not is_captured()
    known = loss if loss is not None and not loss.is_complex() and module_tree.is_quiet(loss) else None
    lying = [(number, p) for number, held in roles.ours() if (p := _holds_gradient(held)) is not None]
    elsewhere = [number for number, _ in roles.ours()] if fsdp_units.keeps_gradients() else []
    root = loss.grad_fn if loss is not None and reads else None
    loss_is = divided(root)
    _running = journal.note(
        "backward",
        rewritten=since_step.written(),
        unread=sorted({*elsewhere, *(number for number, _ in lying)}),
        divisor=loss_is.number if loss_is.number != 1 else None,
        divisions=list(loss_is.divisions),
        averaged=is_mean(loss_is.behind) or None,
        losses=losses(root, loss_is.behind) if root is not None else [],
    )
    if known is not None:
        _read(known, _running, "value", reads)
    for number, parameter in lying:
        _note_kept(_running, number, parameter, reads)
    may_be = {*_running.get("unread", ()), *_running.get("kept", ())}
    _lying[:] = [
        (n, weakref.ref(p), id(p.grad), p.grad._version)
        for n, p in lying
        if n in may_be and p.grad is not None
    ]


@harmless
def _backward_ended() -> None:
    """Gradients as backward leaves them: what is done to them until the optimizer uses them shows by comparison."""
    global _backwards, _running
    _backwards += 1
    if _running is not None and _lying:
        _running["added"] = [n for n, p, gradient, version in _lying if _was_added_to(p, gradient, version)]
    _lying.clear()
    since_step.forget()
    _running = None
    _mark()
    if current() is None or not journal.valued or _backwards > MOST_BACKWARDS:
        return
    for number, optimizer in roles.ours():
        made = [(name, p.grad) for name, p in roles.held_by(optimizer) if p.grad is not None]
        journal.note("made", place="", optimizer=number, values=checksums(made[:MOST_MADE]))


def _mark() -> None:
    since_backward.forget()
    since_backward.set(roles.ours())


def _was_added_to(held: weakref.ref[torch.Tensor], gradient: int, version: int) -> bool:
    """Whether a backward has added to it; what the user's code puts there, it leaves alone."""
    parameter = held()
    now = parameter.grad if parameter is not None else None
    return now is not None and (id(now) != gradient or now._version > version)


def _holds_gradient(optimizer: Any) -> torch.Tensor | None:
    """The first of its parameters with a gradient, or the first whose gradient can be read."""
    held = [p for group in groups_of(optimizer) for p in group["params"] if p.grad is not None]
    return next((p for p in held if own_part(p.grad) is not None), held[0] if held else None)


def _note_kept(operation: Operation, number: int, parameter: torch.Tensor, reads: bool) -> None:
    """Notes that the gradient is of before, unless it is all zeros."""

    def note(anything: float) -> None:
        operation["unread"].remove(number)
        if not operation["unread"]:
            del operation["unread"]
        if anything:
            operation.setdefault("kept", []).append(number)
        elif number in operation.get("added", ()):
            operation["added"].remove(number)

    gradient = own_part(parameter.grad)
    if gradient is not None:
        _look_at(gradient.any(), note, reads)


def _read(number: torch.Tensor, operation: Operation, key: str, reads: bool) -> None:
    _look_at(number.detach(), functools.partial(operation.__setitem__, key), reads)


def _look_at(number: torch.Tensor, note: Callable[[float], None], reads: bool) -> None:
    """Has it noted: at once on a CPU, and where the probe `invariants` waits for a GPU; else when it has come from there."""
    if number.device.type == "cpu" or reads:
        note(float(number))
    else:
        journal.read_later(number, note)


@harmless
def _clipped(norm: Any, limit: Any) -> None:
    if current() is None or not journal.looking:
        return
    own = isinstance(norm, torch.Tensor) and not hasattr(norm, "_local_tensor") and module_tree.is_quiet(norm)
    operation = journal.note("clip", limit=float(limit) if isinstance(limit, int | float) else None)
    if own and norm.numel() == 1:
        _read(norm, operation, "value", journal.valued and not is_captured())
    _mark()


@harmless
def _unscaled(optimizer: Any) -> None:
    if current() is not None and journal.looking:
        journal.note("unscale")


@harmless
def _was_unscaled() -> None:
    if current() is not None and journal.looking:
        _mark()


@harmless
def _before_step(optimizer: Any) -> None:
    global _ungraded
    if current() is None:
        return
    number, held = roles.stepping(optimizer), roles.held_by(optimizer)
    graded = sum(p.grad is not None for _, p in held)
    trained = [_trained.setdefault(id(p), _now) for _, p in held if p.requires_grad and p.grad is not None]
    details: dict[str, Any] = {
        "settings": ledger.settings(optimizer),
        "held": sum(bool(p.requires_grad and own_elements(p)) for _, p in held),
        "graded": graded,
        "of": sum(bool(own_elements(p)) for _, p in held),
        "since": min(trained, default=None),
        "written": bool(since_backward.written()) or None,
    }
    if journal.valued:
        _note_whole(number, held)
        chosen = evenly(held)
        details["values"] = checksums(chosen)
        made = [(name, p.grad) for name, p in chosen if p.grad is not None]
        journal.note("used", place="", optimizer=number, values=checksums(made))
        journal.note("buffers", place="", values=checksums(evenly(roles.our_buffers())))
        rounding.note(number, optimizer, held)
        note_beside(_now)
        if flow.following:
            journal.note("flow", place="", optimizer=number, calls=flow.at(optimizer))
        if _now in UNHELD_AT:
            journal.note(
                "unheld", place="", optimizer=number, values=checksums(unheld(optimizer)[:MOST_UNHELD])
            )
    operation = journal.note("step", optimizer=number, name=type(optimizer).__name__, **details)
    if held and not graded:
        _ungraded = weakref.ref(optimizer), operation, [p._version for _, p in held]
        steps.after_step.append(_after_ungraded)


@harmless
def _after_ungraded(optimizer: Any) -> None:
    """Notes that it has written parameters all the same: some keep gradients elsewhere."""
    global _ungraded
    steps.after_step.remove(_after_ungraded)
    stepped, operation, versions = _ungraded or (lambda: None, {}, [])
    _ungraded = None
    if stepped() is optimizer and [p._version for p in stepped_by(optimizer)] != versions:
        operation["writes"] = True


@harmless
def _after_step(optimizer: Any) -> None:
    if current() is not None:
        since_step.set([(roles.stepping(optimizer), optimizer)])


def _note_whole(number: int, held: list[tuple[str, torch.Tensor]]) -> None:
    """All parameters where they fit into what is read at a step; of more, others at each step that is looked at."""
    start = 0 if len(held) < 2 else journal.looks * STRIDE % len(held)
    exacts = whole_sums([p for _, p in held], start)
    journal.note(
        "whole",
        place="",
        optimizer=number,
        start=start or None,
        exacts=exacts,
        named=[name for name, _ in held] if number not in _named else [],
        of_models=_of_models(held) if number not in _named else [],
    )
    _named.add(number)


def _of_models(held: list[tuple[str, torch.Tensor]]) -> list[int]:
    """The number of the model that each lies in, of several the largest; names of two models may be the same."""
    models = [{id(p) for _, p in module_tree.named_parameters(root)} for root in roots.living()]
    largest = sorted(range(len(models)), key=lambda n: -len(models[n]))
    return [next((n for n in largest if id(p) in models[n]), -1) for _, p in held]


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
        found = call(self, optimizer, *args, **kwargs)
        _was_unscaled()
        return found

    return unscale_


@contextlib.contextmanager
def operations() -> Iterator[None]:
    """Forward, backward, collectives, clipping, scaler, optimizer and loads, in their order, with the user's lines (invariants.jsonl).

    Where no GPU is used, with checksums of what they touch: inputs, losses, gradients, parameters, buffers.
    """
    from torch.amp.grad_scaler import GradScaler

    clip = torch.nn.utils.clip_grad
    with contextlib.ExitStack() as stack:
        stack.enter_context(module_calls.observed_calls())
        subscribe(stack, budget.on_step, _step_ended)
        stack.callback(journal.clear)
        stack.callback(roles.forget)
        stack.callback(_named.clear)
        stack.callback(_trained.clear)
        stack.callback(_modules.clear)
        stack.callback(since_backward.forget)
        stack.callback(since_step.forget)
        stack.callback(_listen, False)
        _listen(True)
        stack.enter_context(replaced(clip, "clip_grad_norm_", _around_clip(clip.clip_grad_norm_)))
        stack.enter_context(replaced(GradScaler, "unscale_", _around_unscale(GradScaler.unscale_)))
        stack.enter_context(states())
        stack.enter_context(births())
        stack.enter_context(buckets())
        stack.callback(rounding.forget)
        stack.callback(flow.follow, False)
        flow.turn(0, valued=journal.valued)
        yield


@contextlib.contextmanager
def invariants() -> Iterator[None]:
    """Reads what they touch on a GPU as well, and waits for it. On request."""
    journal.waits = True
    try:
        yield
    finally:
        journal.waits = False
