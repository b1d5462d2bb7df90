"""States that are saved and loaded, of models, optimizers and schedulers, and the epochs of samplers: noted in every step."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Subset

from nsadiag.worker.imports.on_import import when_imported
from nsadiag.worker.probes.autograd import module_calls, module_tree
from nsadiag.worker.probes.correctness.invariants import births, ledger, roles
from nsadiag.worker.probes.correctness.invariants.checksums import are_among, checksums
from nsadiag.worker.probes.correctness.invariants.journal import Operation, current, journal
from nsadiag.worker.probes.correctness.replicas import evenly
from nsadiag.worker.probes.patch import harmless, replaced, stands_for

SCHEDULERS = "torch.optim.lr_scheduler"
MOST_INDICES = 1 << 12  # of a part of the data
MOST_NOTES = 60  # of one run: a job that saves or makes something in every step fills no journal with it

# In the order of their first epochs.
_samplers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
# Loads of this step into modules that share nothing with what has run, by id of the module: it may run yet.
_apart: dict[int, tuple[weakref.ref[torch.nn.Module], Operation]] = {}
_numbers = itertools.count()  # of samplers: one that is gone keeps its own
_noted = 0


@harmless
def _loaded(module: torch.nn.Module, state: Any, result: Any) -> None:
    rank = current()
    if rank is None:
        return
    missing, unexpected = len(result.missing_keys), len(result.unexpected_keys)
    known = {id(p) for _, p in roles.parameters()}
    apart = (
        journal.looking
        and bool(known)
        and all(id(p) not in known for _, p in module_tree.named_parameters(module))
    )
    reads = apart and journal.valued
    own = evenly(list(module_tree.named_parameters(module))) if reads else []
    ledger.await_step()
    operation = journal.note(
        "load",
        always=rank,
        name=type(module).__name__,
        of_state="model",
        given=len(state),
        missing=missing,
        unexpected=unexpected,
        apart=apart or None,
        # What is loaded into another module may be copied from there: then what trains has changed at its next step.
        values=checksums(evenly(roles.our_parameters())) if reads else [],
        same=(reads and are_among([p for _, p in own], [p for _, p in roles.our_parameters()])) or None,
    )
    if apart:
        _apart[id(module)] = weakref.ref(module), operation
        if _called not in module_calls.on_call:
            module_calls.on_call.append(_called)


@harmless
def _called(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
    _apart.pop(id(module), None)


def settle() -> None:
    """The step is over: what was loaded into, has not run and is gone will never run."""
    for module, operation in _apart.values():
        if module() is None:
            operation["gone"] = True
    _listen_no_more()


def _listen_no_more() -> None:
    _apart.clear()
    if _called in module_calls.on_call:
        module_calls.on_call.remove(_called)


@harmless
def _restored(kind: str, restored: Any) -> None:
    rank = current()
    if rank is not None:
        ledger.await_step()
        journal.note("load", always=rank, name=type(restored).__name__, of_state=kind)


@harmless
def _created(kind: str, made: Any) -> None:
    rank = current()
    if rank is not None and _notes():
        epoch = getattr(made, "last_epoch", 0)
        journal.note(
            "create",
            always=rank,
            name=type(made).__name__,
            of_state=kind,
            epoch=epoch or None,
            **_entry(kind, made),
        )


@harmless
def _saved(kind: str, saved: Any) -> None:
    rank = current()
    if rank is not None and _notes():
        # By these a state of the model that is loaded later shows to be the one of this moment.
        values = checksums(evenly(roles.our_parameters())) if journal.valued else []
        journal.note(
            "save",
            always=rank,
            name=type(saved).__name__,
            of_state=kind,
            values=values,
            epoch=getattr(saved, "last_epoch", None) or None,
            **_entry(kind, saved),
        )


def _entry(kind: str, of: Any) -> dict[str, Any]:
    """Its entry in the ledger: of a scheduler, sums over what its optimizer trains, and what it was made with."""
    if kind == "optimizer":
        return ledger.entry(of)
    optimizer = getattr(of, "optimizer", None)
    if kind != "scheduler" or not isinstance(optimizer, torch.optim.Optimizer):
        return {}
    return {**ledger.entry(optimizer), "settings": ledger.settings(optimizer), "state": ledger.course(of)}


def _notes() -> bool:
    """Whether one more save or creation is noted."""
    global _noted
    _noted += 1
    return _noted <= MOST_NOTES


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
            sampler=_number(sampler),
            seed=int(sampler.seed),
            length=int(sampler.num_samples),
            replicas=int(sampler.num_replicas),
            replica=int(sampler.rank),
            whole=_identity(sampler.dataset),
        )


def _identity(data: Any) -> int:
    """A checksum of the places of which torch's own type makes a part; 0 of data that is whole, or that only the user's code knows."""
    if type(data) is not Subset:
        return 0
    indices = data.indices
    plain = type(indices) is range or (type(indices) is list and all(type(i) is int for i in indices))
    return zlib.crc32(repr((len(indices), list(indices[:MOST_INDICES]))).encode()) if plain else 0


def _number(sampler: Any) -> int:
    if sampler not in _samplers:
        _samplers[sampler] = next(_numbers)
    return _samplers[sampler]


# -- where they are ---------------------------------------------------------------------------------


def _around_load(call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def load_state_dict(self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(self, state_dict, *args, **kwargs)
        _loaded(self, state_dict, result)
        return result

    return load_state_dict


def _around_restore(kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(self, *args, **kwargs)
        _restored(kind, self)
        return result

    return load_state_dict


def _around_save(kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(self, *args, **kwargs)
        _saved(kind, self)
        return result

    return state_dict


def _around_init(kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        call(self, *args, **kwargs)
        births.remember(self)
        _created(kind, self)

    return __init__


def _around_order(call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def __iter__(self: Any) -> Any:
        _epoch(self)
        return call(self)

    return __iter__


def _wrap_sampler(stack: contextlib.ExitStack) -> None:
    sampler = sys.modules["torch.utils.data.distributed"].DistributedSampler
    stack.enter_context(replaced(sampler, "__iter__", _around_order(sampler.__iter__)))


def _wrap_states(stack: contextlib.ExitStack, kind: str, classes: list[type]) -> None:
    """Around the methods of each class that has its own; the first is what the others are made of."""
    made = classes[0]
    stack.enter_context(replaced(made, "__init__", _around_init(kind, vars(made)["__init__"])))
    for owner in classes:
        for name, around in (("state_dict", _around_save), ("load_state_dict", _around_restore)):
            if name in vars(owner):
                stack.enter_context(replaced(owner, name, around(kind, vars(owner)[name])))


def _forget() -> None:
    global _noted
    _noted = 0
    ledger.forget()
    _listen_no_more()


@contextlib.contextmanager
def states() -> Iterator[None]:
    """Loads, saves and epochs, in any step."""
    from torch.amp.grad_scaler import GradScaler

    module = torch.nn.Module
    found = [v for v in vars(sys.modules[SCHEDULERS]).values() if isinstance(v, type)]
    first = torch.optim.lr_scheduler.LRScheduler
    schedulers = [first, *(s for s in found if s.__module__ == SCHEDULERS and s is not first)]
    with contextlib.ExitStack() as stack:
        stack.callback(_forget)
        stack.enter_context(replaced(module, "load_state_dict", _around_load(module.load_state_dict)))
        _wrap_states(stack, "optimizer", [torch.optim.Optimizer])
        _wrap_states(stack, "scheduler", schedulers)
        _wrap_states(stack, "scaler", [GradScaler])
        when_imported("torch.utils.data.distributed", functools.partial(_wrap_sampler, stack))
        yield
