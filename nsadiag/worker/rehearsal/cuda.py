"""The CPU in the place of GPUs that a script names though there are none: tensors are made there, streams do nothing.

What depends on the order of streams, on kernels of its own or on NCCL is not rehearsed. It is installed where a first
rehearsal ended for want of a GPU: a script that asks whether there is one takes its own way without.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed import device_mesh, distributed_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

CUDA, CPU = "cuda", "cpu"
MEMORY = 80 * 2**30  # of a device that does not exist


def install(everywhere: Callable[[Any, Any], None]) -> None:
    """For the rest of this process. `everywhere` puts a function in another's place in all modules of torch.distributed."""
    _OnCpu().__enter__()
    vars(torch.cuda).update(_stand_ins())
    for kind in (torch.Tensor, torch.nn.Module):
        setattr(kind, CUDA, lambda self, *_, **__: self)
    DistributedDataParallel.__init__ = _model_alone(DistributedDataParallel.__init__)
    everywhere(distributed_c10d.init_process_group, _without_device(distributed_c10d.init_process_group))
    everywhere(device_mesh.init_device_mesh, _on_cpu(device_mesh.init_device_mesh))
    device_mesh.DeviceMesh.__init__ = _on_cpu(device_mesh.DeviceMesh.__init__)
    everywhere(distributed_c10d.is_nccl_available, lambda: True)


class _OnCpu(TorchFunctionMode):  # type: ignore[misc]
    """Every function of torch's that is given a device."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") == "pin_memory":
            return args[0]
        named = {name: _moved(value) for name, value in (kwargs or {}).items()}
        if "pin_memory" in named:
            named["pin_memory"] = False
        return function(*map(_moved, args), **named)


def _moved(value: Any) -> Any:
    """A device that is no GPU; whatever else as it is."""
    if isinstance(value, str) and value.partition(":")[0] == CUDA:
        return CPU
    return torch.device(CPU) if isinstance(value, torch.device) and value.type == CUDA else value


def _on_cpu(function: Any) -> Any:
    @functools.wraps(function)
    def moved(*args: Any, **more: Any) -> Any:
        return function(*map(_moved, args), **{name: _moved(value) for name, value in more.items()})

    return moved


def _model_alone(function: Any) -> Any:
    """DDP's constructor without `device_ids` and `output_device`, which follow the model."""

    @functools.wraps(function)
    def called(self: Any, module: Any, *args: Any, **more: Any) -> Any:
        return function(self, module, None, None, *args[2:], **_but(more, "device_ids", "output_device"))

    return called


def _without_device(function: Any) -> Any:
    @functools.wraps(function)
    def called(*args: Any, **more: Any) -> Any:
        return function(*args, **_but(more, "device_id"))

    return called


def _but(given: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in names}


class _Nothing:
    """A stream, an event, or the context of one: whatever is asked of it is done already."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _end: Any) -> float:
        return 1.0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: self


def _stand_ins() -> dict[str, Any]:
    """Names of `torch.cuda`."""
    ranks, own = (int(os.environ.get(name) or 0) for name in ("LOCAL_WORLD_SIZE", "LOCAL_RANK"))
    zero = (
        "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "utilization",
    )  # fmt: skip
    silent = (
        "set_device", "synchronize", "empty_cache", "ipc_collect", "manual_seed", "manual_seed_all", "init",
        "reset_peak_memory_stats", "reset_max_memory_allocated", "set_per_process_memory_fraction", "_lazy_init",
        "set_stream", "seed", "seed_all",
    )  # fmt: skip
    about = SimpleNamespace(
        name="none", total_memory=MEMORY, major=8, minor=0, multi_processor_count=1, gcnArchName=""
    )
    return {
        **dict.fromkeys(zero, lambda *_, **__: 0),
        **dict.fromkeys(silent, lambda *_, **__: None),
        **dict.fromkeys(("Stream", "Event", "stream", "device", "device_of", "ExternalStream"), _Nothing),
        **dict.fromkeys(("current_stream", "default_stream"), lambda *_, **__: _Nothing()),
        "is_available": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "device_count": lambda: max(ranks, 1),
        "current_device": lambda: own,
        "get_device_name": lambda *_: about.name,
        "get_device_properties": lambda *_: about,
        "get_device_capability": lambda *_: (about.major, about.minor),
        "mem_get_info": lambda *_: (MEMORY, MEMORY),
        "memory_stats": lambda *_: {},
        "memory_summary": lambda *_, **__: "",
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "nvtx": _Nothing(),
    }
