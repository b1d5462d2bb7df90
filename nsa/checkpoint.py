"""Checkpoints that a run resumes from bit for bit: model, optimizer, random states, data, step."""

from __future__ import annotations

import random
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from nsa.config import ConfigError
from nsa.data import Stream


@dataclass(kw_only=True)
class Progress:
    """What changes while training. The learning rate is a function of `step`, so it needs no saving."""

    model: nn.Module  # as it is called: wrapped for its parallel mode
    optimizer: torch.optim.Optimizer
    stream: Stream
    step: int = 0


def save_checkpoint(progress: Progress, directory: str | Path) -> Path:
    """Write `directory`/step_N, whole or not at all; a collective. Returns its path.

    Model and optimizer go through torch.distributed.checkpoint, what belongs to a rank into rank_R.pt.
    """
    target = Path(directory) / f"step_{progress.step}"
    unfinished = target.with_name(f".{target.name}.unfinished")
    if _rank() == 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
    _barrier()
    with _alone_is_fine():
        dcp.save(_shared_state(progress), checkpoint_id=unfinished)
    torch.save(_own_state(progress), unfinished / f"rank_{_rank()}.pt")
    _barrier()
    if _rank() == 0:
        shutil.rmtree(target, ignore_errors=True)
        unfinished.rename(target)
    _barrier()
    return target


def load_checkpoint(progress: Progress, path: str | Path) -> None:
    """Bring `progress` to where the checkpoint at `path` was written; a collective."""
    own_file = Path(path) / f"rank_{_rank()}.pt"
    ranks = len(list(Path(path).glob("rank_*.pt")))
    if ranks != _world_size():
        raise ConfigError(
            f"{path} was written by {ranks} ranks, and here are {_world_size()}",
            "resume on as many ranks, or start without checkpoint.resume",
        )
    state = _shared_state(progress)
    with _alone_is_fine():
        dcp.load(state, checkpoint_id=Path(path))
    for group, own in zip(state["optimizer"]["param_groups"], progress.optimizer.param_groups, strict=True):
        # As this run steps, with or without a CUDA graph, whatever the one that wrote the checkpoint did.
        group |= {"lr": own["lr"], "capturable": own["capturable"]}
    set_state_dict(
        progress.model,
        progress.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    own = torch.load(own_file, weights_only=True)
    progress.step = own["step"]
    progress.stream.load_state_dict(own["stream"])
    _set_random_state(own["random"])


def newest_checkpoint(directory: str | Path) -> Path | None:
    """The finished checkpoint with the highest step below `directory`, if there is one."""
    found = [path for path in Path(directory).glob("step_*") if re.fullmatch(r"step_\d+", path.name)]
    return max(found, key=lambda path: int(path.name.removeprefix("step_")), default=None)


def _shared_state(progress: Progress) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(progress.model, progress.optimizer)
    for group in optimizer_state["param_groups"]:
        group["lr"] = float(group["lr"])  # a CUDA graph reads it from a tensor, which is saved otherwise
    return {"model": model_state, "optimizer": optimizer_state}


def _own_state(progress: Progress) -> dict[str, Any]:
    return {"step": progress.step, "stream": progress.stream.state_dict(), "random": _random_state()}


def _random_state() -> dict[str, Any]:
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_available() else []
    return {"torch": torch.get_rng_state(), "cuda": cuda, "python": random.getstate()}


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    for cuda in state["cuda"][: torch.cuda.device_count()]:
        torch.cuda.set_rng_state(cuda)
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


@contextmanager
def _alone_is_fine() -> Iterator[None]:
    """torch warns when it saves or loads without a process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single process.*")
        yield
