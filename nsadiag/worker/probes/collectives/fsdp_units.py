"""FSDP's units as they are unsharded, resharded and reduced, by the name of their module: FSDP1 and FSDP2.

Under `light` only what issues a collective is recorded: unsharding and reduction.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist

from nsadiag.evidence.layout import write_json
from nsadiag.evidence.probes import is_light
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.worker import session
from nsadiag.worker.imports.on_import import when_imported
from nsadiag.worker.probes.autograd import module_tree
from nsadiag.worker.probes.autograd.module_calls import qualified
from nsadiag.worker.probes.collectives import model_structure
from nsadiag.worker.probes.patch import failed, harmless, not_compiled, replaced, stands_for
from nsadiag.worker.recorder import Recorder

# Torch's name of the step, ours, and whether it issues a collective.
FSDP2_STEPS = (
    ("unshard", "unshard", True),
    ("wait_for_unshard", "wait", False),
    ("reshard", "reshard", False),
    ("post_backward", "reduce", True),
)
FSDP1_STEPS = (
    ("_unshard", "unshard", True),
    ("_reshard", "reshard", False),
    ("_post_backward_hook", "reduce", True),
)
# FSDP2 moved in torch 2.6.
FSDP2 = ("torch.distributed.fsdp._fully_shard", "torch.distributed._composable.fsdp")
FSDP1 = "torch.distributed.fsdp._runtime_utils"
FSDP1_SHARE = "_share_state_and_init_handle_attrs"
FSDP1_WRAPPER = "torch.distributed.fsdp.fully_sharded_data_parallel"
_every_step = not is_light(os.environ.get("NSADIAG_PROBES", "light"))

# Unit to its name. Weak: a unit holds its parameters.
_units: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_described: list[dict[str, Any]] = []


def _add(rank: Recorder, units: list[tuple[Any, str, dict[str, Any]]]) -> None:
    new = [(unit, name, described) for unit, name, described in units if unit not in _units]
    for unit, name, described in new:
        _units[unit] = name
        _described.append({"unit": name, **described})
    if new:
        for known in _known:
            known.clear()
        write_json(rank.directory.units, _described)


def _group(group: Any) -> dict[str, Any]:
    name = getattr(group, "group_desc", "undefined")
    return {
        "group": name if name not in ("", "undefined") else getattr(group, "group_name", None),
        "ranks": dist.get_process_group_ranks(group),
    }


# -- FSDP2: a unit is an FSDPParamGroup ------------------------------------------------------------------


def _groups_of(state: Any) -> list[Any]:
    """Newer torch has several a state."""
    several = getattr(state, "_fsdp_param_groups", None)
    one = getattr(state, "_fsdp_param_group", None)
    return list(several) if several is not None else [one] if one is not None else []


def _describe_group(group: Any) -> dict[str, Any]:
    mesh = getattr(getattr(group, "mesh_info", None), "mesh", None)
    return {
        "kind": "FSDP2",
        "parameters": [
            {
                "name": qualified(str(getattr(p, "_param_fqn", None))),
                "shape": list(getattr(p, "_orig_size", ())),
                "dtype": str(getattr(p, "orig_dtype", "")),
            }
            for p in group.fsdp_params
        ],
        "mesh": {"dimensions": getattr(mesh, "mesh_dim_names", None), "shape": list(getattr(mesh, "shape", ()))},
        "reshard_after_forward": getattr(group, "post_forward_mesh_info", None) is not None,
        **_group(group._all_gather_process_group),
    }  # fmt: skip


def _name_of_group(group: Any) -> str:
    name = getattr(group, "_module_fqn", None)
    return qualified(name) if name else type(group.modules[0]).__name__


@harmless
def _learn_fsdp2(state: Any) -> None:
    rank = session.current()
    if rank is None:
        return
    groups = [group for each in state._state_ctx.all_states for group in _groups_of(each)]
    _add(rank, [(group, _name_of_group(group), _describe_group(group)) for group in groups])


def keeps_gradients() -> bool:
    """Whether FSDP2 holds gradients of micro-batches that it has not reduced yet: they lie in no optimizer's parameter."""
    return any(_keeps_gradients(unit) for unit in list(_units))


def _keeps_gradients(unit: Any) -> bool:
    trained = next((p for p in getattr(unit, "fsdp_params", ()) if p.sharded_param.requires_grad), None)
    if trained is None:
        return False
    unsharded = getattr(trained, "_unsharded_param", None)  # until it has been gathered for the first time
    return trained.unsharded_accumulated_grad is not None or getattr(unsharded, "grad", None) is not None


def _observed_lazy_init(call: Callable[..., Any]) -> Callable[..., Any]:
    """Once the root has run it, every unit knows its own name."""

    @stands_for(call)
    def _lazy_init(self: Any, *args: Any, **kwargs: Any) -> Any:
        new = self._is_root is None
        result = call(self, *args, **kwargs)
        if new:
            _learn_fsdp2(self)
        return result

    return _lazy_init


# -- FSDP1: a unit is a FlatParamHandle ------------------------------------------------------------------


def _describe_handle(state: Any, handle: Any, prefix: str) -> dict[str, Any]:
    flat = handle.flat_param
    shapes = getattr(flat, "_shapes", ())
    return {
        "kind": "FSDP1",
        "parameters": [
            {"name": qualified(f"{prefix}.{name}" if prefix else name), "shape": list(shape), "dtype": str(flat.dtype)}
            for name, shape in zip(getattr(flat, "_fqns", ()), shapes, strict=False)
        ],
        "mesh": None,
        "sharding_strategy": str(getattr(state, "sharding_strategy", "")),
        **_group(state.process_group),
    }  # fmt: skip


def _handles_under(root: Any) -> list[tuple[Any, str, dict[str, Any]]]:
    found = []
    for prefix, module in module_tree.named_modules(root):
        handle = getattr(module, "_handle", None)
        if handle is not None and hasattr(handle, "flat_param"):
            name = qualified(prefix) or type(getattr(module, "module", module)).__name__
            found.append((handle, name, _describe_handle(module, handle, prefix)))
    return found


@harmless
def _learn_fsdp1(root: Any) -> None:
    rank = session.current()
    if rank is not None:
        _add(rank, _handles_under(root))


def _observed_sharing(call: Callable[..., Any]) -> Callable[..., Any]:
    """The root tells all its units what they share, once: the moment to learn their names."""

    @stands_for(call)
    def _share_state_and_init_handle_attrs(state: Any, root: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(state, root, *args, **kwargs)
        _learn_fsdp1(root)
        return result

    return _share_state_and_init_handle_attrs


@harmless
def _begin_wrap(module: Any, group: Any) -> None:
    rank = session.ensure_rank()
    if rank is None or not isinstance(module, torch.nn.Module):
        return
    # Hybrid sharding takes two groups; both together are what it shards over, and any rank of it is a replica.
    model_structure.note(
        rank, "FullyShardedDataParallel", module, None if isinstance(group, tuple) else group
    )


def _observed_init(construct: Callable[..., None]) -> Callable[..., None]:
    @stands_for(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        group = args[1] if len(args) > 1 else kwargs.get("process_group")
        _begin_wrap(args[0] if args else kwargs.get("module"), group)
        construct(self, *args, **kwargs)

    return __init__


def _wrap_fsdp1_class(stack: ExitStack) -> None:
    owner = sys.modules[FSDP1_WRAPPER].FullyShardedDataParallel
    stack.enter_context(replaced(owner, "__init__", _observed_init(owner.__init__)))


# -- both ------------------------------------------------------------------------------------------------


# Plain integers, as in the recorder. A step has a dozen of these calls, each of them out of caches that the model has filled.
_UNIT, _BEGIN, _END = int(Kind.UNIT), int(Phase.BEGIN), int(Phase.END)
MOST_KNOWN = 4096
# By operation: of a unit, by its address, the recorder and the number of the name in it.
_known: list[dict[int, tuple[weakref.ref[Any], Recorder, int]]] = []


def _begin_of(operation: str) -> Callable[[Any], int | None]:
    """Records that a unit begins it; gives the number of its name."""
    known: dict[int, tuple[weakref.ref[Any], Recorder, int]] = {}
    _known.append(known)
    recorded = session.recorded

    def begin(unit: Any) -> int | None:
        rank = recorded.rank
        if rank is None:
            return None
        try:
            found = known.get(id(unit))
            if found is None or found[1] is not rank or found[0]() is not unit:
                if len(known) >= MOST_KNOWN:
                    known.clear()
                name = rank.names(f"{operation} {_units.get(unit) or type(unit).__name__}")
                found = known[id(unit)] = weakref.ref(unit), rank, name
            rank.emit(_UNIT, _BEGIN, found[2])
            return found[2]
        except Exception as error:
            failed(begin, error)
            return None

    return not_compiled(begin, what_it_calls=True)


def _end(name: int) -> None:
    rank = session.recorded.rank
    if rank is not None:
        rank.emit(_UNIT, _END, name)


not_compiled(_end, what_it_calls=True)


def _observed_method(call: Callable[..., Any], operation: str) -> Callable[..., Any]:
    begin, end = _begin_of(operation), _end

    @stands_for(call)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = begin(self)
        try:
            return call(self, *args, **kwargs)
        finally:
            if name is not None:
                end(name)

    return step


def _observed_function(call: Callable[..., Any], operation: str) -> Callable[..., Any]:
    begin, end = _begin_of(operation), _end

    @stands_for(call)
    def step(state: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
        name = begin(handle) if handle else None
        try:
            return call(state, handle, *args, **kwargs)
        finally:
            if name is not None:
                end(name)

    return step


def _chosen(steps: tuple[tuple[str, str, bool], ...]) -> list[tuple[str, str]]:
    return [(name, operation) for name, operation, collective in steps if collective or _every_step]


def _gap(what: str) -> None:
    rank = session.current()
    if rank is not None:
        rank.gap(f"FSDP units are not seen: this torch has no {what}")


def _wrap_groups(stack: ExitStack, module: str) -> None:
    owner = getattr(sys.modules[module], "FSDPParamGroup", None)
    for name, operation in _chosen(FSDP2_STEPS):
        call = getattr(owner, name, None)
        if call is None:
            _gap(f"FSDPParamGroup.{name}")
        else:
            stack.enter_context(replaced(owner, name, _observed_method(call, operation)))


def _wrap_state(stack: ExitStack, module: str) -> None:
    owner = getattr(sys.modules[module], "FSDPState", None)
    call = getattr(owner, "_lazy_init", None)
    if call is None:
        _gap("FSDPState._lazy_init")
    else:
        stack.enter_context(replaced(owner, "_lazy_init", _observed_lazy_init(call)))


def _wrap_fsdp1(stack: ExitStack) -> None:
    owner = sys.modules[FSDP1]
    share = getattr(owner, FSDP1_SHARE, None)
    if share is None:
        _gap(f"{FSDP1}.{FSDP1_SHARE}")
    else:
        stack.enter_context(replaced(owner, FSDP1_SHARE, _observed_sharing(share)))
    for name, operation in _chosen(FSDP1_STEPS):
        call = getattr(owner, name, None)
        if call is None:
            _gap(f"{FSDP1}.{name}")
        else:
            stack.enter_context(replaced(owner, name, _observed_function(call, operation)))


@contextlib.contextmanager
def fsdp_units() -> Iterator[None]:
    """FSDP's units being unsharded, resharded, reduced, by module; their parameters and groups (units.json)."""
    if not dist.is_available():
        yield
        return
    with ExitStack() as stack:
        for package in FSDP2:
            groups, states = f"{package}._fsdp_param_group", f"{package}._fsdp_state"
            when_imported(groups, functools.partial(_wrap_groups, stack, groups))
            when_imported(states, functools.partial(_wrap_state, stack, states))
        when_imported(FSDP1, functools.partial(_wrap_fsdp1, stack))
        when_imported(FSDP1_WRAPPER, functools.partial(_wrap_fsdp1_class, stack))
        yield
