"""Around the optimizer's step: parameters without a gradient, handles nobody waited for, and sums of the parameters.

The sums are compared between ranks afterwards: replicas of a data-parallel model are equal after each step, or they
train different models. They are taken at steps 0, 1, 2, 4, 8, 16, 24, 32, 48, 64, ..., 256, 320, 384, ..., of a few
parameters: `.tolist()` waits for a GPU. The rates of the very last step are noted when the job ends: what a scheduler
does to one rank alone makes its next steps others than its peers'.
Steps are counted from the last wrap in DDP: a rank may have made some of its own before, with another optimizer.
And under Join a rank without data left goes along in the steps of others, so that each sum says of what moment it is.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import operator
import weakref
from collections import deque
from collections.abc import Iterator
from statistics import median
from time import monotonic, monotonic_ns
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.compiler import is_dynamo_compiling

from nsadiag.evidence.layout import append_json_line
from nsadiag.worker import session
from nsadiag.worker.interruptions import pass_on, tolerated
from nsadiag.worker.probes.autograd.backward import now
from nsadiag.worker.probes.autograd.gradients import name_of
from nsadiag.worker.probes.autograd.module_tree import is_quiet
from nsadiag.worker.probes.collectives import async_handles
from nsadiag.worker.probes.collectives.collectives import on_destroy
from nsadiag.worker.probes.collectives.ddp_buckets import left_out, own_buffers, wrapped_models
from nsadiag.worker.probes.looks import is_look
from nsadiag.worker.probes.patch import failed, not_compiled, replaced, stands_for
from nsadiag.worker.probes.training.optimizer import first_held
from nsadiag.worker.probes.training.step_hooks import step_hooks
from nsadiag.worker.probes.values import groups_of, stepped_by
from nsadiag.worker.recorder import Recorder

Item = TypeVar("Item")
SHARE = 0.0005  # of the time between two steps, for looking through the gradients
SUMMED = 48  # parameters: what one rank alone changes is often a single one
BUFFERS = 16
ELEMENTS = 4096  # of each, spread over it
NAMED = 50
MOST_ROWS = 200

_optimizers: dict[int, int] = {}  # by address: in order of their first steps
_without: dict[int, tuple[int, ...]] = {}  # by optimizer: indices of the parameters that had no gradient
_rows = 0
_skip = 0  # of the steps to come, by whatever optimizer
_passed = 0  # what it was after the last look
_last = 0.0
# Seconds for one parameter, of the last looks. Their median counts: on a busy machine any look may last as long as a
# neighbour's turn, and the quickest has found in the caches what a step of the model mostly has not left there.
_each_s: deque[float] = deque(maxlen=5)
_grad_of = operator.attrgetter("grad")
_before: set[int] = set()
_subject: weakref.ref[Any] | None = None  # the optimizer whose parameters are summed
_since = 0  # its steps since the last wrap
_wraps = 0  # made until then
_subjects = 0  # since the last wrap: the first is gone where a second one comes
_shadowed = 0  # forwards of others that this rank went along in, having no data left
_deferred: tuple[int, int] | None = None  # optimizer and step whose gradients are looked at when it is done
_rates: list[Any] = []  # of the last step, by group of parameters
_noted = 0  # steps that had been made when they were last noted


def _name(parameter: torch.Tensor, index: int) -> str:
    return name_of(parameter) or f"parameter {index}"


# Both guard themselves: they run in every step, and `harmless` would cost each a frame.
def _before_step(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    global _before, _deferred, _skip
    if is_dynamo_compiling():
        return
    try:
        rank = session.recorded.rank
        if rank is None:
            return
        if id(optimizer) not in _optimizers:
            _take_over(optimizer)
        number = _optimizers.setdefault(id(optimizer), len(_optimizers))
        if _skip > 0:
            _skip -= 1
        elif _has_closure(args, kwargs):
            # The gradients are made in there: they are looked at when the step is done.
            _deferred = number, rank.box.step
        else:
            _note_missing(rank, optimizer, number, rank.box.step)
        if async_handles.opened:
            _before = async_handles.now_open()
        # Asked as a whole where something has changed, which nearly no step does.
        unchanged = _subject is not None and _subject() is optimizer and len(wrapped_models) == _wraps
        if (unchanged or _is_subject(optimizer)) and _since == 0:
            _sum(rank, optimizer)
    except Exception as error:
        failed(_before_step, error)


def _take_over(optimizer: Any) -> None:
    """One that is made anew for the same parameters is what trains them from now on, whoever keeps the old one alive."""
    global _subject
    known = _subject() if _subject is not None else None
    if known is not None and first_held(known) is first_held(optimizer):
        _subject = None


def optimizers_seen() -> int:
    """Number of optimizers that have stepped so far."""
    return len(_optimizers)


def _has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the step was given a function that computes the loss, as Lightning and LBFGS do."""
    return callable(kwargs.get("closure", args[1] if len(args) > 1 else None))


def _note_missing(rank: Recorder, optimizer: Any, number: int, step: int) -> None:
    """A row whenever the set of parameters without a gradient has changed."""
    global _skip, _passed, _last, _rows
    started = monotonic()
    parameters = stepped_by(optimizer)
    missing: tuple[int, ...] = ()
    # In C, as nearly always there is nothing to find: a fifth of what a loop would cost.
    # A question of ours is none of a tensor subclass's.
    with torch._C.DisableTorchFunction():
        if any(map(operator.is_, map(_grad_of, parameters), itertools.repeat(None))):
            missing = tuple(i for i, p in enumerate(parameters) if p.grad is None)
    if missing != _without.get(number, ()) and _rows < MOST_ROWS:
        _rows += 1
        row = {
            "step": step,
            "t_mono_ns": monotonic_ns(),
            "optimizer": number,
            "of": len(parameters),
            "count": len(missing),
            "missing": [_name(parameters[i], i) for i in missing[:NAMED]],
        }
        append_json_line(rank.directory.ungraded, row)
    _without[number] = missing
    _each_s.append((monotonic() - started) / max(len(parameters), 1))
    # Of one step: those that were passed over since the last look lie in between.
    apart = (started - _last) / (_passed + 1) if _last else 1.0
    _passed = _skip = min(int(median(_each_s) * len(parameters) / max(apart * SHARE, 1e-9)), 64)
    _last = started


def _is_subject(optimizer: Any) -> bool:
    """Whether it is the first that steps after the last wrap; the next one's turn comes when that one is gone."""
    global _rates, _subject, _since, _subjects, _wraps
    wraps = len(wrapped_models)
    if _subject is None or _subject() is None or wraps != _wraps:
        _subjects = _subjects + 1 if wraps == _wraps else 1
        _subject, _since, _wraps, _rates = weakref.ref(optimizer), 0, wraps, []
    return _subject() is optimizer


def _after_step(optimizer: Any, *_: Any) -> None:
    global _before, _deferred, _rates, _since
    if is_dynamo_compiling():
        return
    try:
        rank = session.recorded.rank
        if rank is None:
            return
        number = _optimizers.get(id(optimizer))
        if _deferred is not None and _deferred[0] == number:
            (asked, begun), _deferred = _deferred, None
            _note_missing(rank, optimizer, asked, begun)
        if _before:
            before, _before = _before, set()
            async_handles.report(rank, {_name(p, i): p for i, p in enumerate(stepped_by(optimizer))}, before)
        if _subject is not None and optimizer is _subject():
            _since += 1
            _rates = _rates_of(optimizer)
            if is_look(_since):
                _sum(rank, optimizer)
    except Exception as error:
        failed(_after_step, error)


for _function in (_before_step, _after_step):
    not_compiled(_function, what_it_calls=True)


def _is_sharded(parameter: torch.Tensor) -> bool:
    return hasattr(parameter, "_local_tensor")


def _spread(parameter: torch.Tensor) -> torch.Tensor:
    flat = parameter.detach().reshape(-1)
    return flat[:: -(-flat.numel() // ELEMENTS)].double()


def evenly(parameters: list[Item]) -> list[Item]:
    """A few of them, the first and the last among them."""
    last = len(parameters) - 1
    return (
        [parameters[n] for n in sorted({round(k * last / (SUMMED - 1)) for k in range(SUMMED)})]
        if parameters
        else []
    )


def sums_of(parameters: list[torch.Tensor]) -> list[tuple[float, float]] | None:
    """Sums of some elements of each: of their values, and of their magnitudes, which tell how much a difference means.

    The magnitudes differ where the values do not: those of a layer before a softmax keep their sum, whatever it learns.
    None where there are no parameters, or the device must not be waited for.
    """
    if not parameters or (parameters[0].is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    with torch.no_grad():
        parts = [_spread(p) for p in parameters]
        device = parts[0].device
        # One wait for the device, however many parameters.
        found = torch.stack([s.to(device) for part in parts for s in (part.sum(), part.abs().sum())]).tolist()
    return list(zip(found[::2], found[1::2], strict=True))


def _issued() -> int | None:
    """Collectives of the whole job so far, DDP's own included: the same on all ranks at one moment."""
    try:
        group: Any = dist.group.WORLD
        return int(group._get_sequence_number_for_group())
    except Exception as error:  # a backend that does not count
        pass_on(error)
        return None


def _shadowing(go_along: Any) -> Any:
    @stands_for(go_along)
    def main_hook(*args: Any, **kwargs: Any) -> Any:
        global _shadowed
        _shadowed += 1
        return go_along(*args, **kwargs)

    return main_hook


def _can_be_summed(tensor: torch.Tensor) -> bool:
    return is_quiet(tensor) and bool(tensor.numel()) and not _is_sharded(tensor)


def _sum(rank: Recorder, optimizer: Any) -> None:
    if rank.world_size < 2 or not (dist.is_available() and dist.is_initialized()):
        return
    trained = [(i, p) for i, p in enumerate(stepped_by(optimizer)) if _can_be_summed(p)]
    chosen = evenly(trained)
    buffers = evenly([(n, b) for n, b in own_buffers() if _can_be_summed(b)])[:BUFFERS]
    both = sums_of([p for _, p in chosen] + [b for _, b in buffers])
    if not chosen or both is None:
        return
    sums, of_buffers = both[: len(chosen)], both[len(chosen) :]
    passed_over = left_out()
    row = {
        **_moment(rank),
        "elements": sum(p.numel() for _, p in trained),
        # How often each was written into in place: by the optimizer, and by whatever else does.
        "written": [0 if p.is_inference() else p._version for _, p in chosen],
        "left_out": [n for n, (_, p) in enumerate(chosen) if id(p) in passed_over],
        "parameters": [
            [passed_over.get(id(p)) or _name(p, i), list(p.shape), *each]
            for (i, p), each in zip(chosen, sums, strict=True)
        ],
    }
    if buffers:
        row["buffers"] = [[n, list(b.shape), *each] for (n, b), each in zip(buffers, of_buffers, strict=True)]
    append_json_line(rank.directory.replicas, row)


def _rates_of(optimizer: Any) -> list[Any]:
    return [group.get("lr") for group in groups_of(optimizer)]


def _moment(rank: Recorder) -> dict[str, Any]:
    global _noted
    _noted = _since
    # A rate that is a tensor may be on a GPU that must not be waited for.
    known = [float(rate) for rate in _rates if isinstance(rate, int | float)]
    return {
        # The optimizer probe, listed before this one, has counted the step already.
        "step": rank.box.step,
        "since": _since,
        "subject": [_wraps, _subjects],
        "issued": _issued(),
        "backwards": now.made,
        "shadowed": _shadowed,
        "t_mono_ns": monotonic_ns(),
        "rates": known if len(known) == len(_rates) else [],
    }


def _at_the_end() -> None:
    """The last step's rates, without sums: what else was done to the parameters since is nobody's drift."""
    rank = session.recorded.rank
    if rank is None or rank.world_size < 2 or _noted == _since:
        return
    with tolerated(Exception):
        append_json_line(rank.directory.replicas, {**_moment(rank), "parameters": []})


@contextlib.contextmanager
def replicas() -> Iterator[None]:
    """Parameters without a gradient (ungraded.jsonl), handles not waited for (unwaited.jsonl), sums (replicas.jsonl)."""
    from torch.nn.parallel import distributed

    joins: Any = getattr(distributed, "_DDPJoinHook", None)
    atexit.register(_at_the_end)
    on_destroy.append(_at_the_end)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(step_hooks(_before_step, _after_step))
            if joins:
                stack.enter_context(replaced(joins, "main_hook", _shadowing(joins.main_hook)))
            yield
    finally:
        on_destroy.remove(_at_the_end)
        atexit.unregister(_at_the_end)
