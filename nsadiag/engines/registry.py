"""The engines there are: ours, and those that other packages add by an entry point of the group nsadiag.engines."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import cast

from nsadiag.engines.batch import BatchEngine, BatchOptions
from nsadiag.errors import MachineError, UsageError

GROUP = "nsadiag.engines"
OURS = {
    "local": "This machine.",
    "static": "The same command on every node, by hand or by whatever can run a command on several nodes.",
    "slurm": "Slurm jobs, one a cell, submitted as job arrays through submitit.",
    "ray": "A Ray cluster: a placement group for each cell, one actor on each of its nodes.",
    "kubernetes": "Manifests alone, by --dry-run: TrainJob, JobSet or RayJob.",
}


def engines() -> dict[str, str]:
    """Name to what it is for; those of others are not imported for it."""
    return OURS | {point.name: f"Of another package: {point.value}." for point in _others()}


def _others() -> list[metadata.EntryPoint]:
    return sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name)


def check_engine(name: str) -> None:
    """Raises UsageError if there is none of that name."""
    if name not in engines():
        raise UsageError(f"there is no engine {name!r}", f"choose from {', '.join(engines())}")


def batch_engine(name: str, options: BatchOptions) -> BatchEngine:
    """Raises UsageError if the engine is none, or does not know what the options ask for; MachineError if it cannot be used here."""
    check_engine(name)
    if name == "kubernetes":
        raise UsageError(
            "nsadiag submits nothing to Kubernetes", "add --dry-run, and pipe it to kubectl apply -f -"
        )
    if name == "slurm":
        from nsadiag.engines.slurm import Slurm

        return Slurm(options)
    if name == "ray":
        from nsadiag.engines.on_ray.engine import Ray

        return Ray(options)
    point = next(point for point in _others() if point.name == name)
    try:
        make = cast("Callable[[BatchOptions], BatchEngine]", point.load())
    except ImportError as error:
        raise MachineError(
            f"engine {name} ({point.value}) cannot be imported: {error}", "reinstall its package"
        ) from None
    return make(options)
