"""The distribution of a model over ranks."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from nsa.config import ConfigError, FSDPConfig, ParallelConfig
from nsa.context import ContextShard
from nsa.model import Block, NSAModel
from nsa.training.recomputation import apply_activation_checkpointing

try:
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
except ImportError:  # torch 2.5
    from torch.distributed._composable.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "bf16_pure": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The rank of this process, the world size, and the device it computes on."""

    rank: int
    world_size: int
    device: torch.device


@contextmanager
def process_group(config: ParallelConfig) -> Iterator[Placement]:
    """The placement of this process, in the process group that torchrun's environment describes.

    Without torchrun, distributed modes run in a world of one. A process group that the caller has initialised is used
    and not destroyed. ConfigError if the mode does not fit.
    """
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = pick_device(config)
    if config.mode == "single" and world_size > 1:
        raise ConfigError(f"parallel.mode is single on {world_size} ranks", "choose ddp or fsdp2")
    ours = config.mode != "single" and not dist.is_initialized()
    if ours:
        _init_process_group(config, device)
    try:
        yield Placement(rank=rank, world_size=world_size, device=device)
    except BaseException:
        # Destroying an NCCL group may wait for peers that wait for this rank: the hang would hide the exception.
        ours = ours and dist.get_backend() == "gloo"
        raise
    finally:
        if ours:
            dist.destroy_process_group()
            _forget_meshes()


_meshes: list[DeviceMesh] = []  # that were made for the process group


def _mesh(device: torch.device, shape: tuple[int, ...], names: tuple[str, ...] | None = None) -> DeviceMesh:
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
    _meshes.append(mesh)
    return mesh


def _forget_meshes() -> None:
    """End gloo's threads before the interpreter shuts down.

    FSDP's modules and states form reference cycles, and DTensor's caches keep every mesh; both keep process groups
    alive after destroy_process_group. Their threads then release tensors during interpreter shutdown, which needs the
    GIL, and torch 2.13 aborts the process, in one of four FSDP2 runs on an idle machine.
    """
    gc.collect()
    while _meshes:
        # Private, and missing in some versions, which then keep the meshes.
        getattr(_meshes.pop(), "_pg_registry", {}).clear()


def _init_process_group(config: ParallelConfig, device: torch.device) -> None:
    backend = config.backend
    if backend == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    under_torchrun = "RANK" in os.environ
    dist.init_process_group(
        backend,
        timeout=timedelta(seconds=config.timeout_s),
        device_id=device if backend == "nccl" else None,
        **({} if under_torchrun else {"store": dist.HashStore(), "rank": 0, "world_size": 1}),
    )


def context_shard(config: ParallelConfig, seq_len: int, placement: Placement) -> ContextShard | None:
    """This rank's part of every sequence; None without context parallelism. ConfigError if the sizes do not fit."""
    ranks, layout = config.context.ranks, config.context.layout
    if ranks == 1:
        return None
    if placement.world_size % ranks:
        raise ConfigError(
            f"parallel.context.ranks is {ranks}, which does not divide {placement.world_size} ranks",
            "sequences are shared by equal groups of neighbouring ranks",
        )
    parts = ranks * (2 if layout == "zigzag" else 1)
    if seq_len % parts:
        raise ConfigError(
            f"data.seq_len is {seq_len}, which {ranks} ranks cannot share in the layout {layout}",
            f"take a multiple of {parts}",
        )
    mesh_shape = (placement.world_size // ranks, ranks)
    mesh = _mesh(placement.device, mesh_shape, ("data", "context"))
    group = mesh["context"].get_group()
    return ContextShard(group=group, rank=placement.rank % ranks, size=ranks, layout=layout)


def apply_context(model: NSAModel, shard: ContextShard, seq_len: int, device: torch.device) -> None:
    """Have the attention of `model` take its input for this rank's part of sequences of `seq_len` tokens."""
    model.rotations.upto(seq_len, device)
    for block in model.blocks:
        block.attn.context = shard


def apply_parallel(
    model: NSAModel, config: ParallelConfig, precision: str, device: torch.device
) -> nn.Module:
    """Apply activation checkpointing and the parallel mode of `config`; returns the module to call."""
    apply_activation_checkpointing(
        model, config.activation_checkpointing, reentrant=config.reentrant, binding=config.binding
    )
    if config.mode == "ddp":
        return DistributedDataParallel(model, **config.ddp.arguments())
    if config.mode == "fsdp1":
        return apply_fsdp1(model, config.fsdp, precision, device)
    if config.mode == "fsdp2":
        return apply_fsdp2(model, config.fsdp, precision, device)
    return model


def apply_fsdp2(model: NSAModel, config: FSDPConfig, precision: str, device: torch.device) -> nn.Module:
    """fully_shard (FSDP version 2) on each block and on the rest of the model, in place."""
    mesh = _mesh(device, (dist.get_world_size(),))
    mixed = None if precision == "fp32" else DTYPES[precision]
    policy = MixedPrecisionPolicy(param_dtype=mixed, reduce_dtype=mixed and DTYPES[config.reduce_dtype])
    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=config.reshard_after_forward)
    return model


def apply_fsdp1(model: NSAModel, config: FSDPConfig, precision: str, device: torch.device) -> nn.Module:
    """FullyShardedDataParallel (version 1) with each block a unit, to compare with version 2."""
    mixed = DTYPES[precision]
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=None
        if precision == "fp32"
        else MixedPrecision(param_dtype=mixed, reduce_dtype=DTYPES[config.reduce_dtype], buffer_dtype=mixed),
        sharding_strategy=ShardingStrategy.FULL_SHARD
        if config.reshard_after_forward
        else ShardingStrategy.SHARD_GRAD_OP,
        device_id=device,
        use_orig_params=True,
    )


@contextmanager
def gradient_sync(model: nn.Module, *, enabled: bool) -> Iterator[None]:
    """Make backward passes in this context reduce gradients over ranks, or accumulate them locally."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(enabled)
        yield
    elif isinstance(model, (DistributedDataParallel, FullyShardedDataParallel)):
        with nullcontext() if enabled else model.no_sync():
            yield
    else:
        yield


def clip_gradients(model: nn.Module, max_norm: float | None) -> Tensor:
    """Scale all gradients so that their norm, over all ranks, is at most `max_norm`; the norm before."""
    limit = float("inf") if max_norm is None else max_norm
    if isinstance(model, FullyShardedDataParallel):
        return model.clip_grad_norm_(limit)
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def plain_name(name: str) -> str:
    """A parameter's name in the model, given its name in the module that DDP or FSDP made of it."""
    return name.replace("_fsdp_wrapped_module.", "").removeprefix("module.")


def mean_over_ranks(value: Tensor) -> Tensor:
    """The mean of a scalar over all ranks; a collective where there is a process group."""
    if not dist.is_initialized():
        return value
    value = value.detach().clone()
    dist.all_reduce(value)
    return value / dist.get_world_size()


def pick_device(config: ParallelConfig) -> torch.device:
    """The device that `config` names, on a GPU that of this process's local rank; ConfigError for a GPU that is not there."""
    name = config.device
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("parallel.device is cuda, and torch sees no GPU", "choose cpu or auto")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device
