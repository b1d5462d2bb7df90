"""Modules in forward and backward, by qualified name; a recomputation inside backward is tagged as one.

`light` records the outermost forward, and looks at every call in a few learning steps only. `full` records every
module, down to the depth that short steps afford, and the moment at which backward reaches each module's output.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.worker import session
from nsadiag.worker.probes import budget, rests
from nsadiag.worker.probes.autograd import module_calls, reloads
from nsadiag.worker.probes.autograd.backward import census as graph_census
from nsadiag.worker.probes.autograd.backward import now as backward_now
from nsadiag.worker.probes.patch import failed, harmless
from nsadiag.worker.probes.values import is_a, items_of, tensors_among
from nsadiag.worker.recorder import Recorder

# Plain integers: reading a member of an enumeration costs as much as half the event.
_FORWARD, _MODULE, _BACKWARD = int(Kind.FORWARD), int(Kind.MODULE), int(Kind.MODULE_BACKWARD)
_BEGIN, _END = int(Phase.BEGIN), int(Phase.END)
_full = budget.is_full()
_has_function_mode = torch._C._is_torch_function_mode_enabled
COST = (
    5.0  # of one module, in events: two in forward, the frames around them, and now and then one in backward
)
_reached: dict[int, Callable[[Any], None]] = {}
_steps_counted = 0
_per_step: dict[int, float] = {}  # calls by depth, as they were last counted
_depth_limit = module_calls.EVERY_DEPTH
_innermost = 0  # depth of the call that began last
_given = 0  # elements of the tensors that the outermost module was called with


def _enter(rank: Recorder, name: int, nested: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    global _innermost, _given
    if backward_now.counting and (census := graph_census()) is not None:
        census.enter(name)
    recomputed = backward_now.depth > 0
    if nested == 0:
        # How much a forward is given: steps that grow with it are not steps in which something piles up.
        plain = len(args) == 1 and not kwargs and type(args[0]) is torch.Tensor and not _has_function_mode()
        _given = args[0].numel() if plain else _measured(args, kwargs)
    if nested == 0 and not recomputed:
        rank.emit(_FORWARD, _BEGIN, name, 0, 0, rank.places.here())
    elif _full:
        rank.emit(_MODULE, _BEGIN, name, recomputed)
        _innermost = nested


def _measured(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    try:
        # A question of ours is none of a subclass's or a mode's.
        with torch._C.DisableTorchFunction():
            return sum(tensor.numel() for tensor in tensors_among((*args, *kwargs.values())))
    except Exception as error:
        failed(_measured, error)
        return 0


def _leave(name: int, nested: int, output: Any) -> None:
    rank = session.recorded.rank
    if rank is None:
        return
    if backward_now.counting and (census := graph_census()) is not None:
        census.leave()
    recomputed = backward_now.depth > 0
    if nested == 0 and not recomputed:
        rank.emit(_FORWARD, _END, name, _given)
    elif _full:
        rank.emit(_MODULE, _END, name, recomputed)
    # What has parameters and nothing inside it is seen in backward by its gradients.
    if _full and (_innermost != nested or nested + 1 >= _depth_limit):
        _watch_backward(rank, name, output)


def _first_tensor(output: Any) -> torch.Tensor | None:
    """One tensor of what a module returned: alone, in a sequence, in a mapping."""
    if is_a(output, torch.Tensor):
        return output
    return next((v for v in items_of(output) if is_a(v, torch.Tensor) and v.grad_fn is not None), None)


def _watch_backward(rank: Recorder, name: int, output: Any) -> None:
    """Hooks the node that made the output: later changes of the tensor in place leave that node where it is."""
    tensor = _first_tensor(output)
    node = tensor.grad_fn if tensor is not None else None
    if node is not None:
        reached = _reached.get(name) or _reached.setdefault(name, rank.emit.marker(_BACKWARD, name))
        node.register_prehook(reached)


@harmless
def _review(step_s: float) -> None:
    """Records as deep as the step affords."""
    global _depth_limit
    steps = max(_steps_counted, 1)
    _per_step.update({nested: count / steps for nested, count in module_calls.calls_by_depth.items()})
    _begin_counting()
    afforded, seen, limit = budget.afforded(step_s, COST), 0.0, 1
    # Deeper ones than are looked at now were counted before: without that memory they would be tried again and again.
    for nested, count in sorted(_per_step.items()):
        seen += count
        if seen > afforded:
            break
        limit = nested + 1
    else:
        limit = module_calls.EVERY_DEPTH
    if limit < _depth_limit == module_calls.EVERY_DEPTH:
        rank = session.current()
        if rank is not None:
            rank.gap(
                f"modules nested deeper than {limit} are not recorded: a step takes {step_s * 1e3:.1f} ms"
            )
    _depth_limit = limit
    _observe(backward_now.counting or budget.learning)


def _observe(closely: bool) -> None:
    """Full probes that look closely see calls wherever they are made, for what is recomputed, but no deeper than is afforded."""
    limit = _depth_limit if _full else module_calls.EVERY_DEPTH if closely else 1
    module_calls.observe(limit, everywhere=closely or limit > 1)


def _count_step() -> None:
    global _steps_counted
    _steps_counted += 1


def _begin_counting() -> None:
    global _steps_counted
    _steps_counted = 0
    module_calls.calls_by_depth.clear()


@contextlib.contextmanager
def modules() -> Iterator[None]:
    """Records what `module_calls` observes."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(module_calls.observed_calls())
        stack.enter_context(module_calls.around_calls(_enter, _leave))
        subscribe(stack, budget.on_closeness, _observe)
        reloads.step_aside(stack)
        module_calls.calls.sparing = rests.are_default()
        if _full:
            subscribe(stack, budget.on_step, _count_step)
            subscribe(stack, budget.on_review, _review)
        stack.callback(_reached.clear)
        stack.callback(budget.forget_closeness)
        stack.callback(_per_step.clear)
        yield


def subscribe(stack: contextlib.ExitStack, subscribers: list[Any], subscriber: Any) -> None:
    """Adds a subscriber until the stack is left."""
    subscribers.append(subscriber)
    stack.callback(subscribers.remove, subscriber)
