"""DDP's buckets: their order, their parameters, DDP's settings. No communication hook is touched.

Who is in which bucket is known in three steps: when the model is wrapped (as DDP asks torch for it), when DDP
rebuilds the buckets in the order in which the first gradients arrived (counted from that order), and once
DDP's own log says it too. When a bucket was ready follows from the gradients (analysis.case).
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist

from nsadiag.evidence.layout import write_json
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.worker import session
from nsadiag.worker.place import user_place
from nsadiag.worker.probes.autograd import gradient_hooks, module_tree
from nsadiag.worker.probes.autograd.module_calls import qualified
from nsadiag.worker.probes.collectives import model_structure
from nsadiag.worker.probes.collectives.collectives import group_name
from nsadiag.worker.probes.patch import harmless, replaced, stands_for
from nsadiag.worker.recorder import Recorder

SETTINGS = (
    "find_unused_parameters", "gradient_as_bucket_view", "broadcast_buffers", "static_graph",
    "skip_all_reduce_unused_params",
)  # fmt: skip
# Where DDP says itself who is in which bucket, and in what order gradients came.
LOGGED_BUCKETS, LOGGED_ORDER = "rebuilt_per_bucket_param_indices", "prev_iteration_grad_ready_order_indices"
LOGGED = (
    "comm_hook", "iteration", "num_buckets_reduced", "unused_parameter_size", LOGGED_ORDER,
    "avg_forward_compute_time", "avg_backward_compute_time", "avg_backward_comm_time",
    "avg_backward_compute_comm_overlap_time",
)  # fmt: skip
ASK_LOG = 16  # forwards after the rebuild in which DDP's log is asked

Buckets = list[list[int]]  # indices of parameters


class Wrapped:
    """One model in DDP: what is known of its buckets so far."""

    def __init__(self, model: Any, initial: Buckets) -> None:
        ignored = model.parameters_to_ignore
        named = [
            (n, p)
            for n, p in module_tree.named_parameters(model.module)
            if p.requires_grad and n not in ignored
        ]
        self.model = weakref.ref(model)
        self.names = [name for name, _ in named]
        self._ids = [id(p) for _, p in named]
        self.initial = initial
        self.rebuilt: Buckets = []
        self.rebuilt_says = ""  # who: "arrival" on this rank, or DDP's own "log"
        self.arrived: list[int] = []
        self.followed: list[Callable[[], None]] = []
        self.forwards_since = 0
        self.hook = ""

    def parameters(self) -> list[torch.Tensor | None]:
        """As its DDP holds them, by index; None once that is gone."""
        model = self.model()
        held = {id(p): p for p in model._module_parameters} if model is not None else {}
        return [held.get(each) for each in self._ids]

    def _parameter(self, index: int) -> torch.Tensor | None:
        return self.parameters()[index]

    def follow_first_backward(self) -> None:
        """The order in which gradients arrive, until DDP has rebuilt its buckets: no cost from then on."""
        for index in range(len(self.names)):
            note = functools.partial(_note_arrival, self.arrived, index, len(self.names))
            self.followed.append(gradient_hooks.follow(functools.partial(self._parameter, index), note))

    def stop_following(self) -> None:
        for undo in self.followed:
            undo()
        self.followed.clear()


def _note_arrival(arrived: list[int], index: int, limit: int, _gradient: torch.Tensor | None) -> None:
    # Where DDP never rebuilds, this goes on for ever.
    if len(arrived) < limit:
        arrived.append(index)


class _Here(threading.local):
    assigned: Buckets | None = None  # what torch answered when DDP last asked


_here = _Here()
wrapped_models: list[Wrapped] = []  # all that there have been
_by_reducer: weakref.WeakKeyDictionary[Any, Wrapped] = weakref.WeakKeyDictionary()


def _shown(wrapped: Wrapped, buckets: Buckets) -> list[dict[str, Any]]:
    parameters = wrapped.parameters()
    return [
        {
            "index": index,
            "parameters": members,
            "elements": sum(p.numel() for p in (parameters[i] for i in members) if p is not None),
            "bytes": sum(p.numel() * p.element_size() for p in (parameters[i] for i in members) if p is not None),
        }
        for index, members in enumerate(buckets)
    ]  # fmt: skip


def describe(wrapped: Wrapped) -> dict[str, Any] | None:
    """Parameters in the order of DDP's own indices, as its error messages count them; buckets in order of reduction."""
    model = wrapped.model()
    if model is None:
        return None
    logged = model._get_ddp_logging_data()
    named = zip(wrapped.names, wrapped.parameters(), strict=True)
    return {
        "parameters": [
            {"name": n, "qualified": qualified(n), "shape": list(p.shape), "dtype": str(p.dtype)}
            for n, p in named
            if p is not None
        ],
        "settings": {name: bool(getattr(model, name, False)) for name in SETTINGS},
        "bucket_cap_mb": getattr(model, "bucket_bytes_cap", 0) / 2**20,
        "bucket_sizes": str(logged.get("bucket_sizes", "")),
        "rebuilt_bucket_sizes": str(logged.get("rebuilt_bucket_sizes", "")),
        "comm_hook": wrapped.hook or str(logged.get("comm_hook", "")),
        "group": group_name(model.process_group),
        "ranks": _ranks_of(model.process_group),
        "buckets": _shown(wrapped, wrapped.initial),
        "rebuilt_buckets": _shown(wrapped, wrapped.rebuilt),
        "rebuilt_says": wrapped.rebuilt_says,
        "logged": {name: logged[name] for name in LOGGED if name in logged},
    }


def _ranks_of(group: Any) -> list[int]:
    """Its global ranks; none where it has been destroyed since the wrap."""
    try:
        ranks: list[int] = dist.get_process_group_ranks(group)
        return ranks
    except KeyError:
        return []


def own_buffers() -> list[tuple[str, torch.Tensor]]:
    """Buffers that each rank keeps for itself, of wrapped models whose buffers DDP does not broadcast, and what they save.

    Without statistics of norms and observers, which may well be each rank's own while it trains.
    """
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for wrapped in wrapped_models:
        model = wrapped.model()
        if model is None or model.broadcast_buffers:
            continue
        for prefix, module in module_tree.named_modules(model.module):
            observes = type(module).__module__.startswith(("torch.ao.", "torchao."))
            if observes or isinstance(module, torch.nn.modules.batchnorm._NormBase):
                continue
            passing = module._non_persistent_buffers_set
            for own_name, buffer in module_tree.own_buffers(module):
                if own_name not in passing and buffer.is_floating_point() and buffer.numel() > 1:
                    found[id(buffer)] = qualified(module_tree.joined(prefix, own_name)), buffer
    return list(found.values())


def left_out() -> dict[int, str]:
    """By id: what is in a wrapped model now and its DDP does not reduce: frozen at the wrap, or put in since."""
    found: dict[int, str] = {}
    for wrapped in wrapped_models:
        model = wrapped.model()
        if model is None:
            continue
        reduced = {id(parameter) for parameter in wrapped.parameters()}
        named = (
            (n, p)
            for n, p in module_tree.named_parameters(model.module)
            if n not in model.parameters_to_ignore
        )
        found |= {id(p): qualified(n) for n, p in named if id(p) not in reduced}
    return found


def _write(rank: Recorder) -> None:
    described = (describe(wrapped) for wrapped in wrapped_models)
    write_json(rank.directory.ddp, [each for each in described if each is not None])


def _point(rank: Recorder, wrapped: Wrapped, what: str, buckets: Buckets) -> None:
    rank.emit(Kind.BUCKET, Phase.POINT, rank.names(what), len(buckets), wrapped_models.index(wrapped))


@harmless
def _begin(module: Any, group: Any) -> None:
    rank = session.ensure_rank()
    if rank is not None:
        place = rank.names("\t" + user_place())
        rank.emit(Kind.WRAP, Phase.BEGIN, rank.names("DistributedDataParallel"), 0, 0, place)
        if isinstance(module, torch.nn.Module):
            model_structure.note(rank, "DistributedDataParallel", module, group)


@harmless
def _end(model: Any) -> None:
    rank = session.current()
    if rank is None:
        return
    rank.emit(Kind.WRAP, Phase.END, rank.names("DistributedDataParallel"))
    # DDP reduces the buckets in the reverse of the order in which torch assigns them.
    wrapped = Wrapped(model, list(reversed(_here.assigned or [])))
    _here.assigned = None
    wrapped_models.append(wrapped)
    _by_reducer[model.reducer] = wrapped
    _point(rank, wrapped, "initial", wrapped.initial)
    _write(rank)
    if wrapped.initial and (model.static_graph or not model.find_unused_parameters):
        wrapped.follow_first_backward()


def _rebuilt_from(wrapped: Wrapped, model: Any) -> Buckets:
    """As DDP does it: in order of arrival, a small first bucket, then the cap. On rank 0 this is what all ranks use."""
    order = list(dict.fromkeys(wrapped.arrived))
    known = wrapped.parameters()
    parameters = [known[i] for i in order]
    if len(order) != len(known) or any(p is None for p in parameters):
        return []
    config = getattr(model, "_bucket_config", None)  # newer than torch 2.12
    first = getattr(config, "first_bucket_bytes_cap", None) or dist._DEFAULT_FIRST_BUCKET_BYTES
    sparse = [False] * len(order)
    assigned, _ = dist._compute_bucket_assignment_by_size(
        parameters, [first, model.bucket_bytes_cap], sparse, order
    )
    return [list(members) for members in assigned]


def _rebuilt_as_logged(model: Any) -> Buckets:
    logged = str(model._get_ddp_logging_data().get(LOGGED_BUCKETS, ""))
    return [[int(i) for i in bucket.split()] for bucket in logged.split(",") if bucket.strip()]


@harmless
def _after_rebuild(wrapped: Wrapped, rebuilt: bool) -> None:
    rank, model = session.current(), wrapped.model()
    if rank is None or model is None:
        return
    if rebuilt:
        wrapped.stop_following()
        wrapped.rebuilt, wrapped.rebuilt_says = _rebuilt_from(wrapped, model), "arrival"
        wrapped.forwards_since = 1
        _point(rank, wrapped, "rebuilt", wrapped.rebuilt)
        _write(rank)
    elif 0 < wrapped.forwards_since <= ASK_LOG:
        wrapped.forwards_since += 1
        logged = _rebuilt_as_logged(model)
        if logged:
            wrapped.rebuilt, wrapped.rebuilt_says, wrapped.forwards_since = logged, "log", 0
            _write(rank)


@harmless
def _after_hook(model: Any, hook: Any) -> None:
    rank, wrapped = session.current(), _by_reducer.get(model.reducer)
    if rank is not None and wrapped is not None:
        wrapped.hook = str(getattr(hook, "__qualname__", None) or hook)
        _write(rank)


def _observed_assignment(call: Callable[..., Any]) -> Callable[..., Any]:
    @stands_for(call)
    def compute_bucket_assignment_by_size(*args: Any, **kwargs: Any) -> Any:
        answer = call(*args, **kwargs)
        assigned: Sequence[Sequence[int]] = answer[0]
        _here.assigned = [list(members) for members in assigned]
        return answer

    return compute_bucket_assignment_by_size


def _observed_rebuild(call: Callable[..., Any]) -> Callable[..., Any]:
    # Only the two states in which there is something to do cost more than a look-up.
    @stands_for(call)
    def _rebuild_buckets(self: Any) -> Any:
        rebuilt = call(self)
        wrapped = _by_reducer.get(self)
        if wrapped is not None and (rebuilt or wrapped.forwards_since):
            _after_rebuild(wrapped, rebuilt)
        return rebuilt

    return _rebuild_buckets


def _observed_hook(call: Callable[..., Any], position: int) -> Callable[..., Any]:
    """`position` of the hook among the arguments after self."""

    @stands_for(call)
    def register_comm_hook(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(self, *args, **kwargs)
        _after_hook(self, args[position] if len(args) > position else next(reversed(kwargs.values()), None))
        return result

    return register_comm_hook


def _observed_init(construct: Callable[..., None]) -> Callable[..., None]:
    @stands_for(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        _begin(args[0] if args else kwargs.get("module"), kwargs.get("process_group"))
        construct(self, *args, **kwargs)
        _end(self)

    return __init__


@contextlib.contextmanager
def ddp_buckets() -> Iterator[None]:
    """DDP's buckets at wrapping and after the rebuild, its parameters by index, its settings (ddp.json)."""
    wrap = torch.nn.parallel.DistributedDataParallel
    assign = "_compute_bucket_assignment_by_size"
    with ExitStack() as stack:
        stack.enter_context(replaced(wrap, "__init__", _observed_init(wrap.__init__)))
        for name, position in (("register_comm_hook", 1), ("_register_builtin_comm_hook", 0)):
            if hasattr(wrap, name):
                observed = _observed_hook(getattr(wrap, name), position)
                stack.enter_context(replaced(wrap, name, observed))
        if hasattr(dist, assign) and hasattr(dist, "Reducer"):
            rebuild = _observed_rebuild(dist.Reducer._rebuild_buckets)
            stack.enter_context(replaced(dist, assign, _observed_assignment(getattr(dist, assign))))
            stack.enter_context(replaced(dist.Reducer, "_rebuild_buckets", rebuild))
        yield
