"""The settings in effect, as the process itself sees them: versions, flags, dtypes, groups."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from time import time_ns
from typing import Any

import torch
import torch.distributed as dist
import torch.utils._device  # torch.get_default_device would import it, in the middle of the job

from nsadiag.evidence.layout import write_json
from nsadiag.evidence.secrets.masking import mask_environment
from nsadiag.worker import session
from nsadiag.worker.interruptions import tolerated
from nsadiag.worker.probes.autograd import module_tree, roots
from nsadiag.worker.probes.autograd.module_calls import on_root
from nsadiag.worker.probes.collectives.collectives import on_group
from nsadiag.worker.probes.patch import harmless
from nsadiag.worker.probes.training.optimizer import on_some_steps
from nsadiag.worker.probes.values import groups_of, stepped_by
from nsadiag.worker.recorder import Recorder

MAX_ROOTS = 16  # a module that is called by itself is a root too
MAX_GROUPS_WRITTEN = 16
_groups_written = 0
_roots_written = 0
_autocast: dict[str, Any] = {}  # as it was when the first module ran


def _asked(questions: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """The answers; a question that this torch does not know is left out."""
    answers = {}
    for name, ask in questions.items():
        with tolerated(Exception):
            answers[name] = ask()
    return answers


def _versions() -> dict[str, Any]:
    return _asked(
        {
            "torch": lambda: torch.__version__,
            "git": lambda: torch.version.git_version,
            "debug_build": lambda: torch.version.debug,
            "cuda": lambda: torch.version.cuda,
            "hip": lambda: torch.version.hip,
            "cudnn": lambda: torch.backends.cudnn.version() if torch.cuda.is_initialized() else None,
            "nccl": lambda: ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else None,
            "python": lambda: sys.version.split()[0],
        }
    )


def _flags() -> dict[str, Any]:
    return _asked(
        {
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
            "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
            "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
            "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
            "float32_matmul_precision": torch.get_float32_matmul_precision,
            "bf16_reduced_precision_reduction": lambda: (
                torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
            ),
            "anomaly_detection": torch.is_anomaly_enabled,
            "default_dtype": lambda: str(torch.get_default_dtype()),
            "default_device": lambda: str(torch.get_default_device()),
            "threads": torch.get_num_threads,
            "interop_threads": torch.get_num_interop_threads,
            "dynamo_loaded": lambda: "torch._dynamo.eval_frame" in sys.modules,
        }
    )


def _attention() -> dict[str, Any]:
    """Backends that scaled_dot_product_attention may choose from; which it chose shows in profiles only."""
    cuda = torch.backends.cuda
    return _asked(
        {
            "flash": cuda.flash_sdp_enabled,
            "memory_efficient": cuda.mem_efficient_sdp_enabled,
            "cudnn": cuda.cudnn_sdp_enabled,
            "math": cuda.math_sdp_enabled,
            "flash_built_in": cuda.is_flash_attention_available,
        }
    )


def _autocast_now() -> dict[str, Any]:
    devices = ("cuda", "cpu")
    return {
        device: {
            "enabled": torch.is_autocast_enabled(device),
            "dtype": str(torch.get_autocast_dtype(device)),
        }
        for device in devices
    }


def census(tensors: Iterable[torch.Tensor]) -> list[dict[str, Any]]:
    """Number of tensors and elements of each dtype, device and requires_grad."""
    counts: dict[tuple[str, str, bool], list[int]] = defaultdict(lambda: [0, 0])
    for tensor in tensors:
        entry = counts[str(tensor.dtype), str(tensor.device), tensor.requires_grad]
        entry[0] += 1
        entry[1] += tensor.numel()
    return [
        {"dtype": dtype, "device": device, "requires_grad": grad, "tensors": tensors, "elements": elements}
        for (dtype, device, grad), (tensors, elements) in counts.items()
    ]


def _model(optimizer: Any) -> dict[str, Any]:
    """Sizes of all root modules, or where none was seen (under torch.compile) of what the optimizer steps."""
    models = roots.living()[:MAX_ROOTS]
    parameters = {id(p): p for root in models for _, p in module_tree.named_parameters(root)}
    buffers = {id(b): b for root in models for _, b in module_tree.named_buffers(root)}
    stepped = stepped_by(optimizer) if optimizer is not None else []
    parameters = parameters or {id(p): p for p in stepped}
    # Of what this thread has stepped alone: the gradient of another thread's model may be replaced by its backward right now.
    gradients = [p.grad for p in stepped if p.grad is not None]
    return {
        "roots": [type(root).__name__ for root in models],
        "training": [module_tree.is_training(root) for root in models],
        "parameters": census(parameters.values()),
        "buffers": census(buffers.values()),
        "gradients": census(gradients),
    }


def _optimizer(optimizer: Any) -> dict[str, Any] | None:
    if optimizer is None:
        return None
    groups = [
        {k: v if isinstance(v, (bool, int, float, str)) else str(v) for k, v in g.items() if k != "params"}
        for g in groups_of(optimizer)[:MAX_ROOTS]
    ]
    return {"type": type(optimizer).__name__, "groups": groups}


def _groups() -> list[dict[str, Any]]:
    if not dist.is_available() or not dist.is_initialized():
        return []
    found = []
    for group, (backend, _store) in dist.distributed_c10d._world.pg_map.items():
        entry = {"name": dist.distributed_c10d._world.pg_names.get(group), "backend": str(backend)}
        entry |= _asked(
            {
                "description": functools.partial(getattr, group, "group_desc"),
                "ranks": functools.partial(dist.get_process_group_ranks, group),
                "timeout_s": functools.partial(_timeout_s, group),
            }
        )
        found.append(entry)
    return found


def _timeout_s(group: Any) -> dict[str, float]:
    """By device, since each may have a backend of its own."""
    return {
        device.type: group._get_backend(device).options._timeout.total_seconds()
        for device in group._device_types
    }


def _write(rank: Recorder, when: str, optimizer: Any = None) -> None:
    document = {
        "when": when,
        "t_wall_ns": time_ns(),
        "step": rank.box.step,
        "versions": _versions(),
        "flags": _flags(),
        "attention": _attention(),
        "autocast": _autocast,
        "autocast_now": _autocast_now(),
        "model": _model(optimizer),
        "optimizer": _optimizer(optimizer),
        "groups": _groups(),
        "environment": mask_environment(os.environ),
    }
    write_json(rank.directory.settings, document)


@harmless
def _after_group() -> None:
    global _groups_written
    rank = session.current()
    # A mesh makes many groups; the last of them are in what the first step writes.
    if rank is not None and _groups_written < MAX_GROUPS_WRITTEN:
        _groups_written += 1
        _write(rank, "process group")


@harmless
def _first_forward(root: torch.nn.Module) -> None:
    global _roots_written
    rank = session.current()
    if rank is None or _roots_written >= MAX_ROOTS or not module_tree.has_parameters(root):
        return
    if not _autocast:
        _autocast.update(_autocast_now())
    _roots_written += 1
    _write(rank, "first forward")


@harmless
def _after_first_step(optimizer: Any, steps: int) -> None:
    rank = session.current()
    if rank is not None and steps == 1:
        _write(rank, "first step", optimizer)


@contextlib.contextmanager
def settings() -> Iterator[None]:
    """Versions, flags, dtypes, autocast, groups, environment: on each new group, at the first forward, after step 1."""
    on_group.append(_after_group)
    on_root.append(_first_forward)
    on_some_steps.append(_after_first_step)
    try:
        yield
    finally:
        on_group.remove(_after_group)
        on_root.remove(_first_forward)
        on_some_steps.remove(_after_first_step)
