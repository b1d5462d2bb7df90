"""The environment of a run: versions, devices, settings, variables that matter, memory, data types."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import nsa
from nsa.attention import resolve_backend
from nsa.config import TrainConfig

_SHOWN = ("NCCL_", "TORCH", "PYTORCH_", "CUDA_", "GLOO_", "OMP_", "MKL_", "TRITON_", "SLURM_", "HF_")
_SHOWN_EXACTLY = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONHASHSEED")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
_USER_INFO = re.compile(r"//[^/@\s]+@")  # user:password@ in an address

# variable, the value that is warned about, why
_GUARDED = (
    ("CUDA_LAUNCH_BLOCKING", "1", "every kernel waits for the one before: slow, and it hides races"),
    ("NCCL_P2P_DISABLE", "1", "GPUs communicate through host memory: slow, and rarely a cure for hangs"),
    ("NCCL_SHM_DISABLE", "1", "ranks of one host communicate over the network: slow"),
    ("NCCL_ASYNC_ERROR_HANDLING", "0", "renamed to TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", "no watchdog: a stuck collective waits indefinitely"),
    ("TORCH_NCCL_BLOCKING_WAIT", "1", "the host waits in every collective: slow"),
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "each collective is checked by another; DDP on gloo crashes in it"),
    ("TORCH_FR_BUFFER_SIZE", "0", "the flight recorder is off: a hang leaves no list of collectives"),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "every tensor is a cudaMalloc: very slow"),
)


def describe_environment(config: TrainConfig, device: torch.device) -> dict[str, Any]:
    """Plain values for env.json: versions, device, effective settings, variables (secrets masked)."""
    return {
        "versions": _versions(),
        "host": {"name": platform.node(), "platform": platform.platform(), "cpus": os.cpu_count()},
        "device": _describe_device(device),
        "attention": attention_backend(config, device),
        "command": sys.argv,
        "config": config.model_dump(),
        "torch": _torch_settings(),
        "environment": shown_environment(os.environ),
        "warnings": guard_environment(os.environ),
    }


def attention_backend(config: TrainConfig, device: torch.device) -> str:
    """The attention implementation: "nsa (triton)", say, or "dense". ConfigError for a backend that is not available."""
    if config.model.attention == "dense":
        return "dense"
    return f"nsa ({resolve_backend(config.attention.backend, device)})"


def shown_environment(environment: Any) -> dict[str, str]:
    """The variables that matter to a distributed run, without the values of secrets."""
    shown = [name for name in environment if name.startswith(_SHOWN) or name in _SHOWN_EXACTLY]
    return {
        name: "***" if _SECRET.search(name) else _USER_INFO.sub("//***@", environment[name])
        for name in sorted(shown)
    }


def guard_environment(environment: Any) -> list[str]:
    """A line for each variable that slows a run down or removes information about hangs."""
    return [
        f"{name}={environment[name]}: {why}"
        for name, bad, why in _GUARDED
        if environment.get(name, "").upper() == bad
    ]


def memory_now(device: torch.device) -> dict[str, float]:
    """Memory of this process in MiB: resident, its peak, and on a GPU the counters of torch's allocator."""
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
    memory = {
        "rss_mib": pages * resource.getpagesize() / 2**20,
        # ru_maxrss is in KiB on Linux and in bytes on macOS.
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        / (2**20 if sys.platform == "darwin" else 2**10),
    }
    if device.type == "cuda":
        memory |= {
            "allocated_mib": torch.cuda.memory_allocated(device) / 2**20,
            "peak_allocated_mib": torch.cuda.max_memory_allocated(device) / 2**20,
            "reserved_mib": torch.cuda.memory_reserved(device) / 2**20,
        }
    return {name: round(value, 1) for name, value in memory.items()}


def memory_dump(device: torch.device) -> dict[str, Any]:
    """`memory_now`, and on a GPU all counters of the allocator."""
    counters = torch.cuda.memory_stats(device) if device.type == "cuda" else {}
    return {**memory_now(device), "allocator": dict(counters)}


def describe_dtypes(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """A line for each parameter: its type, its gradient's, its optimizer state's, and its shape."""
    lines = ["parameter\tdtype\tgradient\toptimizer\tshape"]
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {}).values()
        lines.append(
            "\t".join(
                (
                    name,
                    str(parameter.dtype),
                    str(parameter.grad.dtype) if parameter.grad is not None else "none",
                    _joined(str(value.dtype) for value in state if torch.is_tensor(value)),
                    str(tuple(parameter.shape)),
                )
            )
        )
    for name, buffer in model.named_buffers():
        lines.append(f"{name}\t{buffer.dtype}\tbuffer\t\t{tuple(buffer.shape)}")
    return "\n".join(lines).replace("torch.", "") + "\n"


def _joined(names: Iterable[str]) -> str:
    return ",".join(sorted(set(names)))


def _versions() -> dict[str, Any]:
    nccl = torch.cuda.nccl.version() if torch.cuda.is_available() else None
    return {
        "nsa": nsa.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, nccl)) if nccl else None,
    }


def _describe_device(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"type": device.type, "threads": torch.get_num_threads()}
    properties = torch.cuda.get_device_properties(device)
    return {
        "type": "cuda",
        "index": device.index,
        "name": properties.name,
        "memory_mib": properties.total_memory // 2**20,
        "capability": f"{properties.major}.{properties.minor}",
    }


def _torch_settings() -> dict[str, Any]:
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "anomaly_mode": torch.is_anomaly_enabled(),
    }
