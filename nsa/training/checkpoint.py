"""Checkpoints of model, optimizer, random states, data and step, from which a run resumes bit for bit."""

from __future__ import annotations

import random
import re
import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from nsa.config import ConfigError, TrainConfig
from nsa.restore import write_description
from nsa.training.data import Stream

_NO_GROUP = ".*single process.*"  # torch's warning without a process group


@dataclass(kw_only=True)
class Progress:
    """The state that changes while training. The learning rate is a function of `step`, so it needs no saving."""

    model: nn.Module  # as it is called: wrapped for its parallel mode
    optimizer: torch.optim.Optimizer
    stream: Stream
    step: int = 0


class CheckpointWriter:
    """Writes `directory`/step_N, whole or not at all; every method is a collective.

    torch.distributed.checkpoint writes model and optimizer; the state of a rank is in rank_R.pt. With `background`
    training continues while a copy is written, which is renamed as soon as it is complete; the next save, or `close`,
    waits for it. Only the newest `keep` checkpoints are kept. The configuration lies beside, as nsa.json, and the tokenizer
    of its data.
    """

    def __init__(
        self,
        directory: str | Path,
        config: TrainConfig | None = None,
        *,
        background: bool = False,
        keep: int | None = None,
    ) -> None:
        self._directory, self._keep, self._config = Path(directory), keep, config
        self._writing: Future[None] | None = None
        self._namer = ThreadPoolExecutor(max_workers=1) if background else None
        if background and not dist.is_initialized():
            warnings.filterwarnings("ignore", message=_NO_GROUP)  # in the thread that writes
        # A separate group: its collectives run concurrently with those of training, in an order that differs by rank.
        self._group = dist.new_group(backend="gloo") if background and dist.is_initialized() else None

    def save(self, progress: Progress) -> Path:
        """Write a checkpoint, or begin to; returns its final path."""
        self.finish()
        target = self._directory / f"step_{progress.step}"
        unfinished = target.with_name(f".{target.name}.unfinished")
        if _rank() == 0:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            if self._config is not None:
                write_description(unfinished, self._config)
        _barrier()
        torch.save(_own_state(progress), unfinished / f"rank_{_rank()}.pt")
        with _without_warning():
            state = _shared_state(progress)
            if self._namer is not None:
                written = dcp.async_save(state, checkpoint_id=unfinished, process_group=self._group)
                self._writing = self._namer.submit(self._name_when, written, target)
                return target
            dcp.save(state, checkpoint_id=unfinished)
        _barrier()
        self._name(target)
        _barrier()
        return target

    def finish(self) -> None:
        """Wait for the checkpoint that is being written, if one is."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()
            _barrier()

    def close(self) -> None:
        """Finish, and end the thread and the process group."""
        self.finish()
        if self._namer is not None:
            self._namer.shutdown()
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None

    def _name_when(self, written: Future[Any], target: Path) -> None:
        # On rank 0 this ends when every rank has written its part: rank 0 collects them for the metadata.
        written.result()
        self._name(target)

    def _name(self, target: Path) -> None:
        """Rename a complete checkpoint and remove the oldest beyond `keep`, on rank 0; not a collective."""
        if _rank() == 0:
            shutil.rmtree(target, ignore_errors=True)
            target.with_name(f".{target.name}.unfinished").rename(target)
            for old in _by_step(self._directory)[: -self._keep] if self._keep else ():
                shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(progress: Progress, path: str | Path) -> None:
    """Restore `progress` from the checkpoint at `path`; a collective.

    On the number of ranks that wrote it the state is the same bit for bit. On another number model and optimizer are,
    and the order of samples if the stream numbers them; ConfigError if it does not.
    """
    path = Path(path)
    ranks = len(list(path.glob("rank_*.pt")))
    if not ranks:
        raise ConfigError(f"{path} holds no rank_0.pt", "name a directory that nsa.train wrote")
    if ranks != _world_size() and not progress.stream.common_state:
        raise ConfigError(
            f"{path} was written by {ranks} ranks, here are {_world_size()}, and each rank has read documents of its own",
            "resume on as many ranks, or start without checkpoint.resume",
        )
    state = _shared_state(progress)
    with _without_warning():
        dcp.load(state, checkpoint_id=path)
    for group, own in zip(state["optimizer"]["param_groups"], progress.optimizer.param_groups, strict=True):
        # Those of this run, which may use a CUDA graph where the earlier one did not, or the reverse.
        group |= {"lr": own["lr"], "capturable": own["capturable"]}
    set_state_dict(
        progress.model,
        progress.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    own = torch.load(path / f"rank_{min(_rank(), ranks - 1)}.pt", weights_only=True)
    progress.step = own["step"]
    progress.stream.load_state_dict(own["stream"])
    if _rank() < ranks:  # further ranks keep the random state of their seeds
        _set_random_state(own["random"])


def newest_checkpoint(directory: str | Path) -> Path | None:
    """The complete checkpoint with the highest step in `directory`, if there is one."""
    return next(reversed(_by_step(Path(directory))), None)


def _by_step(directory: Path) -> list[Path]:
    """Complete checkpoints, the newest last."""
    found = [path for path in directory.glob("step_*") if re.fullmatch(r"step_\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step_")))


def _shared_state(progress: Progress) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(progress.model, progress.optimizer)
    for group in optimizer_state["param_groups"]:
        group["lr"] = float(group["lr"])
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
def _without_warning() -> Iterator[None]:
    """Suppress torch's warning about saving or loading without a process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_NO_GROUP)
        yield
