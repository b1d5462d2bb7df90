"""The options of `nsadiag matrix` that say how jobs are started by somebody else's scheduler."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from nsadiag.engines.batch import BatchOptions
from nsadiag.errors import UsageError
from nsadiag.evidence.documents.files import read_text
from nsadiag.spec import Cell

# As Slurm spells it: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS.
TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def parsed(
    *,
    name: str,
    nodes: int | None,
    partition: str | None,
    account: str | None,
    gpus_per_node: int | None,
    time: str | None,
    at_once: int | None,
    address: str | None,
    runtime_env: Path | None,
    more: Sequence[str],
    dry_run: bool,
) -> BatchOptions:
    """Raises UsageError where one says nothing that could be meant."""
    return BatchOptions(
        name=name,
        nodes=nodes or 1,
        partition=partition,
        account=account,
        gpus_per_node=gpus_per_node,
        time_s=None if time is None else seconds_of(time),
        at_once=at_once,
        address=address,
        runtime_env=None if runtime_env is None else runtime_env_in(runtime_env),
        dry_run=dry_run,
        more=dict(_pair(text) for text in more),
    )


def seconds_of(text: str) -> float:
    """Seconds of a time limit in Slurm's notation."""
    found = TIME.fullmatch(text.strip())
    days, first, second, third = (int(n) if n else None for n in found.groups()) if found else (None,) * 4
    if days is not None and first is not None:
        seconds = ((days * 24 + first) * 60 + (second or 0)) * 60 + (third or 0)
    elif third is not None and first is not None:
        seconds = (first * 60 + (second or 0)) * 60 + third
    else:
        seconds = (first or 0) * 60 + (second or 0)
    if not seconds:
        raise UsageError(f"--time is {text!r}", "give minutes, HH:MM:SS, or D-HH:MM:SS")
    return float(seconds)


def _pair(text: str) -> tuple[str, str]:
    key, _, value = text.strip().lstrip("-").partition("=")
    if not re.fullmatch(r"[A-Za-z][\w-]*", key):
        raise UsageError(f"--slurm is {text!r}", "give an option of sbatch as KEY=VALUE: --slurm qos=high")
    return key.replace("_", "-"), value


def runtime_env_in(path: Path) -> dict[str, Any]:
    """A runtime environment of Ray's, as `ray job submit` takes it. Raises UsageError."""
    hint = "give a YAML file as `ray job submit` takes it"
    try:
        found = yaml.safe_load(read_text(path))
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"--runtime-env {path}: {error}", hint) from None
    if not isinstance(found, dict):
        raise UsageError(f"--runtime-env {path} holds no mapping", hint)
    return found


def nodes_of(cell: Cell, most: int) -> int:
    """As many as can have the same number of ranks each."""
    return next(n for n in range(min(most, cell.world_size), 0, -1) if cell.world_size % n == 0)


def check_cells(cells: Sequence[Cell], options: BatchOptions) -> None:
    """Raises UsageError for a cell that could not run as the options say."""
    for cell in cells:
        ranks = cell.world_size // nodes_of(cell, options.nodes)
        on_gpus = cell.env.get("CUDA_VISIBLE_DEVICES") != ""
        if on_gpus and options.gpus_per_node and ranks > options.gpus_per_node:
            raise UsageError(
                f"{cell.id} has {ranks} ranks a node, and --gpus-per-node is {options.gpus_per_node}",
                "give more --nodes, or leave it out with -k",
            )
        if not cell.timeout_s and options.time_s is None:
            raise UsageError(f"{cell.id} has no time limit", "give one in the spec (timeout_s), or --time")
