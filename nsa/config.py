"""Configuration of the attention, the model and its trainer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, get_args

from nsa.schema import (
    Config,
    ConfigError,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    nearest,
)

__all__ = [
    "AttentionConfig",
    "Config",
    "ConfigError",
    "ModelConfig",
    "TrainConfig",
    "make_directory",
    "nearest",
]

AttentionBackend = Literal["auto", "reference", "torch", "triton", "sequential"]
Branch = Literal["compressed", "selected", "sliding"]


def make_directory(key: str, path: str | Path) -> Path:
    """Create the directory at `path` if it is missing; ConfigError that names `key` if it cannot be written."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        writable = os.access(path, os.W_OK)
    except OSError as error:
        raise ConfigError(f"{key} is {path}: {error.strerror}", "name a directory that can be made") from None
    if not writable:
        raise ConfigError(f"{key} is {path}, which cannot be written", "name another directory")
    return Path(path)


class AttentionConfig(Config):
    """Native Sparse Attention (arXiv 2502.11089); the paper's letters in brackets. Lengths are tokens."""

    compress_block: PositiveInt = 32  # l
    compress_stride: PositiveInt = 16  # d
    select_block: PositiveInt = 64  # l'
    select_count: PositiveInt = 16  # n, forced blocks included
    window: PositiveInt = 512  # w
    initial_blocks: NonNegativeInt = 1  # always selected, from the start of the sequence
    local_blocks: NonNegativeInt = 2  # always selected, ending with the query's own block
    compression: Literal["mlp", "mean"] = "mlp"  # φ
    branches: tuple[Branch, ...] = ("compressed", "selected", "sliding")
    backend: AttentionBackend = "auto"
    gate_gradients: bool = True  # false: the gates stay as they were initialised

    def check(self) -> None:
        for name in ("compress_block", "select_block"):
            if getattr(self, name) % self.compress_stride:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; it must be a multiple of compress_stride "
                    f"({self.compress_stride}), as the importance of a block is a sum over whole strides"
                )
        if self.select_count < self.initial_blocks + self.local_blocks:
            raise ConfigError(
                f"select_count is {self.select_count}, fewer than the {self.initial_blocks} initial and "
                f"{self.local_blocks} local blocks that are always selected"
            )
        if not self.branches or len(set(self.branches)) < len(self.branches):
            raise ConfigError(
                f"branches is {self.branches}: name at least one of compressed, selected, sliding, each once"
            )
        # In one order, as a layer's columns have theirs: weights fit every configuration that names the same branches.
        object.__setattr__(
            self, "branches", tuple(name for name in get_args(Branch) if name in self.branches)
        )


class ModelConfig(Config):
    """The language model around the attention; sizes are channels."""

    vocab_size: PositiveInt = 256  # bytes; byte 0 ends a document
    layers: PositiveInt = 12
    dim: PositiveInt = 768
    heads: PositiveInt = 12
    kv_groups: PositiveInt = 2
    head_dim: PositiveInt = 64
    attention: Literal["nsa", "dense"] = "nsa"
    mlp: Literal["gelu", "swiglu"] = "gelu"
    mlp_hidden: PositiveInt | None = None  # null: 4 dim
    rope_base: PositiveFloat = 10000.0
    flash: bool = False  # dense: by the kernels of flash-attn

    def check(self) -> None:
        if self.flash and self.attention != "dense":
            raise ConfigError(
                "flash is true with attention nsa, which has kernels of its own",
                "leave it out, or take dense",
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim is {self.head_dim}", "rotary positions turn pairs: take an even one")
        if self.heads % self.kv_groups:
            raise ConfigError(
                f"heads is {self.heads}, which {self.kv_groups} kv_groups do not divide",
                "every group of query heads shares one key and value head",
            )


class DDPConfig(Config):
    """DistributedDataParallel's own arguments and defaults, and presets of them, which explicit values override.

    "safe" enables the search for parameters without a gradient, for which a bucket would otherwise wait indefinitely,
    disables the broadcast of buffers, makes buckets small, and in a `TrainConfig` also chooses the plain PyTorch attention
    and stops the gradients of the gates. "static" promises that every step uses the same parameters in the same order.
    """

    preset: Literal["none", "safe", "find_unused", "static"] = "none"
    find_unused_parameters: bool = False
    broadcast_buffers: bool = True
    gradient_as_bucket_view: bool = False
    bucket_cap_mb: PositiveFloat = 25.0
    static_graph: bool = False

    def arguments(self) -> dict[str, bool | float]:
        """The arguments of DistributedDataParallel that differ from its defaults, as newer torch warns about some of these."""
        given = self.model_dump(exclude_defaults=True)
        preset = _DDP_PRESETS[given.pop("preset", "none")]
        return {**preset, **given}


_DDP_PRESETS: dict[str, dict[str, bool | float]] = {
    "none": {},
    "safe": {
        "find_unused_parameters": True,
        "broadcast_buffers": False,
        "gradient_as_bucket_view": False,
        "bucket_cap_mb": 5.0,
    },
    "find_unused": {"find_unused_parameters": True},
    "static": {"static_graph": True, "gradient_as_bucket_view": True},
}
# What else "safe" means.
_SAFE_ATTENTION = {"backend": "torch", "gate_gradients": False}


class FSDPConfig(Config):
    """The options common to fully_shard and FullyShardedDataParallel."""

    reshard_after_forward: bool = True
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"


class ContextConfig(Config):
    """The number of neighbouring ranks that share a sequence, and the assignment of its tokens to them."""

    ranks: PositiveInt = 1
    layout: Literal["contiguous", "zigzag"] = "contiguous"  # zigzag: two spans per rank, equal work


class ParallelConfig(Config):
    """The distribution of the model over ranks, and its activation checkpointing."""

    mode: Literal["single", "ddp", "fsdp1", "fsdp2"] = "single"
    activation_checkpointing: Literal["none", "selective", "full"] = "none"  # selective: every other block
    reentrant: bool = False
    binding: Literal["early", "late"] = "early"  # late: a closure bug on purpose, see nsa/specimens.py
    device: Literal["auto", "cpu", "cuda"] = "auto"
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    timeout_s: PositiveFloat = 600.0  # of the process group
    context: ContextConfig = ContextConfig()
    ddp: DDPConfig = DDPConfig()
    fsdp: FSDPConfig = FSDPConfig()


class DataConfig(Config):
    """The source of tokens. One rank's batch is batch_size sequences of seq_len tokens."""

    source: Literal["synthetic", "text", "tokens", "fineweb"] = "synthetic"
    documents: Literal["separate", "joined"] = (
        "separate"  # joined: tokens also see earlier documents of their row
    )
    path: str | None = (
        None  # text: a file or directory; tokens: what nsa.tokenize wrote; fineweb: a local data set
    )
    seq_len: PositiveInt = 2048
    batch_size: PositiveInt = 1
    loader_timeout_s: PositiveFloat = 60.0

    def check(self) -> None:
        if self.path is not None and self.source == "synthetic":
            raise ConfigError(
                f"data.path is {self.path}, and data.source is synthetic, which reads nothing",
                "choose another source",
            )


class OptimizerConfig(Config):
    """AdamW with warm-up, then a cosine, or ("wsd": warm-up, stable, decay) a constant rate and a linear decay."""

    schedule: Literal["cosine", "wsd"] = "cosine"
    decay_share: PositiveFloat = 0.2  # of all steps, that wsd decays in
    lr: PositiveFloat = 3e-4
    min_lr_ratio: NonNegativeFloat = 0.1
    warmup_steps: NonNegativeInt = 0
    weight_decay: NonNegativeFloat = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip_norm: PositiveFloat | None = 1.0

    def check(self) -> None:
        if self.decay_share > 1:
            raise ConfigError(f"decay_share is {self.decay_share}", "it is a share of the steps, at most 1")


class LoopConfig(Config):
    """The training loop; everything is counted in optimizer steps."""

    steps: PositiveInt = 100
    accumulate: PositiveInt = 1  # batches a step
    precision: Literal["fp32", "bf16", "bf16_pure"] = "fp32"  # bf16: autocast or FSDP's mixed precision
    seed: int = 0
    compile: bool = False
    cuda_graph: bool = False  # replay each step as one CUDA graph, if launches take longer than kernels
    detect_anomaly: bool = False  # reports the forward line of a failing backward; slow
    log_every: PositiveInt = 1
    eval_every: NonNegativeInt = 0  # 0: never
    eval_batches: PositiveInt = 4
    selection_loss: NonNegativeFloat = (
        0.0  # weight of the loss that teaches which blocks to select; not in the paper
    )


def _refuse_without_dir(section: str, config: Config, keys: tuple[str, ...]) -> None:
    """Raise ConfigError for keys that are set and without effect, as there is no directory."""
    given = config.model_dump(exclude_defaults=True)
    for key in keys if config.dir is None else ():
        if key in given:
            raise ConfigError(
                f"{section}.{key} is {given[key]}, and {section}.dir is null", f"give --{section}.dir"
            )


class CheckpointConfig(Config):
    """Files to resume from; `dir: null` writes none."""

    dir: str | None = None
    every: NonNegativeInt = 0  # steps; 0: once, at the end
    resume: bool = False  # from the newest in dir, where there is one
    keep: PositiveInt | None = None  # how many of the newest; null: all
    background: bool = False  # write a copy while training continues
    deadline_s: PositiveFloat | None = None  # after the start of the run: save and stop, as on SIGTERM

    def check(self) -> None:
        _refuse_without_dir("checkpoint", self, ("every", "resume", "keep", "background", "deadline_s"))


class TelemetryConfig(Config):
    """The telemetry of a run; `dir: null` writes nothing and starts no thread."""

    dir: str | None = None
    every: PositiveInt = 10  # steps between gate and selection statistics
    heartbeat_s: PositiveFloat = 5.0
    memory_steps: tuple[int, ...] = (1, 5)  # mem_step1, mem_step5: does memory grow?
    memory_every: NonNegativeInt = 0  # and of every so many steps; 0: no others
    tensorboard: bool = False
    wandb: str | None = None  # a project of Weights & Biases

    def check(self) -> None:
        _refuse_without_dir("telemetry", self, ("tensorboard", "wandb", "memory_every"))


class TrainConfig(Config):
    """All of a training run."""

    model: ModelConfig = ModelConfig()
    attention: AttentionConfig = AttentionConfig()
    data: DataConfig = DataConfig()
    parallel: ParallelConfig = ParallelConfig()
    train: LoopConfig = LoopConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    telemetry: TelemetryConfig = TelemetryConfig()

    def check(self) -> None:
        self._check_selection_loss()
        if self.parallel.ddp.preset == "safe":
            given = self.attention.model_dump(exclude_defaults=True)
            object.__setattr__(
                self, "attention", self.attention.model_copy(update={**_SAFE_ATTENTION, **given})
            )

    def _check_selection_loss(self) -> None:
        missing = {"compressed", "selected"} - set(self.attention.branches)
        if self.train.selection_loss and (self.model.attention != "nsa" or missing):
            raise ConfigError(
                f"train.selection_loss is {self.train.selection_loss}, and nothing is selected by trained scores",
                "it needs model.attention nsa and the branches compressed and selected",
            )
        if self.train.selection_loss and self.parallel.context.ranks > 1:
            raise ConfigError(
                "train.selection_loss with parallel.context, whose ranks hold parts of a sequence",
                "leave one of them out",
            )

    def preset_settings(self) -> dict[str, object]:
        """The values that `parallel.ddp.preset` has set, by key."""
        if self.parallel.ddp.preset == "none":
            return {}
        settings = {f"parallel.ddp.{key}": value for key, value in self.parallel.ddp.arguments().items()}
        if self.parallel.ddp.preset == "safe":
            settings |= {f"attention.{key}": getattr(self.attention, key) for key in _SAFE_ATTENTION}
        return settings
