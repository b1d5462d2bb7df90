"""The Ray cluster that this process is a driver of: its nodes, what is free on them, and why a shape does not fit."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nsadiag.errors import MachineError, UsageError

START_ONE = "ray start --head on one node, ray start --address=HEAD:6379 on the others; or give --address"
WITH_TOKEN = "RAY_AUTH_MODE=token, and the token where Ray looks for it: RAY_AUTH_TOKEN or ~/.ray/auth_token"


@dataclass(frozen=True)
class Shape:
    """The nodes that a job needs, and what on each of them."""

    nodes: int
    cpus: int
    gpus: int

    def bundle(self) -> Mapping[str, float]:
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    def __str__(self) -> str:
        each = f"{self.cpus} CPU{'s' if self.cpus > 1 else ''}"
        each += f" and {self.gpus} GPU{'s' if self.gpus > 1 else ''}" if self.gpus else ""
        return f"{self.nodes} nodes with {each} each" if self.nodes > 1 else f"a node with {each}"


def connect(address: str | None, runtime_env: Mapping[str, Any] | None) -> Any:
    """The module `ray`, connected. Raises NsadiagError; a cluster is never started."""
    if (address or "").startswith("ray://"):
        raise UsageError(
            f"--address {address} is a Ray Client's",
            "start nsadiag on a node of the cluster: ray job submit -- nsadiag ...",
        )
    try:
        import ray
    except ImportError:
        raise MachineError("engine ray needs ray", "pip install 'nsadiag[ray]'") from None
    # Ray's driver has a SIGTERM of its own, which would end us before our jobs.
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address or "auto", runtime_env=dict(runtime_env) if runtime_env else None, log_to_driver=False, logging_level=logging.ERROR,
        )  # fmt: skip
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"at {address}" if address else "here"
        words = str(error).strip().splitlines() or [type(error).__name__]
        if "Authentication" in f"{error} {error.__cause__} {error.__context__}":
            raise MachineError(f"the Ray cluster {where} wants a token", WITH_TOKEN) from None
        raise MachineError(f"there is no Ray cluster {where}: {words[0]}", START_ONE) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    return ray


def start_directory(runtime_env: Mapping[str, Any] | None) -> str | None:
    """The directory that agents start in: this one, or None where the runtime environment has one of its own."""
    return None if "working_dir" in (runtime_env or {}) else os.getcwd()  # noqa: PTH109


def why_waiting(ray: Any, shape: Shape) -> str:
    """The reason for which no placement group of this shape exists yet; empty where Ray has merely not scheduled it."""
    totals = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    large = sum(_has(total, shape) for total in totals.values())
    if large < shape.nodes:
        return f"needs {shape}; the cluster has {_count(large, 'such node')} of {len(totals)}"
    free = sum(_has(left, shape) for left in ray._private.state.available_resources_per_node().values())
    return "" if free >= shape.nodes else f"needs {shape}; free: {_count(free, 'such node')} of {large}"


def _has(resources: Mapping[str, float], shape: Shape) -> bool:
    return all(resources.get(name, 0) >= needed for name, needed in shape.bundle().items())


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
