"""A user's training script with errors that nobody notices, one at a time: `parity_job.py MODE FAULT BASE`.

BASE is plain, clip (gradients are clipped) or dropout. Every mode reads the same eight rows a step; none of the errors ends the job.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

mode, fault, base = sys.argv[1:4]
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
ROWS, WIDTH, CLASSES = 8, 23, 11


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 50), nn.Linear(50, WIDTH)
        self.dropout = nn.Dropout(0.2 if base == "dropout" else 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, WIDTH)
        self.side = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.mixers = nn.ParameterList(torch.eye(WIDTH) + 0.1 * torch.randn(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        side = self.side(x)
        x = x + (side.detach() if fault == "detached" else side)
        for layer in self.layers:
            x = self.run(layer, x)
        for mixer in self.mixers:
            # Functions that hold no module: what backward recomputes, only gradients tell.
            late = lambda y: torch.tanh(y @ mixer)  # noqa: B023, E731
            bound = lambda y, mixer=mixer: torch.tanh(y @ mixer)  # noqa: E731
            x = checkpoint(late if fault == "late_function" else bound, x, use_reentrant=False)
        return F.cross_entropy(self.head(x).flatten(0, 1), tags.flatten())

    def run(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if fault in ("checkpoint", "redrawn"):
            return checkpoint(layer, x, use_reentrant=False, preserve_rng_state=fault != "redrawn")
        return layer(x)


class LateTagger(Tagger):
    def forward(self, words: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        x = x + self.side(x)
        for layer in self.layers:
            x = checkpoint(lambda y: layer(y), x, use_reentrant=False)  # noqa: B023, PLW0108
        for mixer in self.mixers:
            x = torch.tanh(x @ mixer)
        return F.cross_entropy(self.head(x).flatten(0, 1), tags.flatten())


def wrapped(model: nn.Module) -> nn.Module:
    if mode == "ddp":
        return DistributedDataParallel(model)
    if mode.startswith("fsdp1"):
        return FullyShardedDataParallel(
            model,
            auto_wrap_policy=ModuleWrapPolicy({Layer}),
            use_orig_params=mode != "fsdp1_flat",
            sharding_strategy=ShardingStrategy.NO_SHARD
            if mode == "fsdp1_whole"
            else ShardingStrategy.FULL_SHARD,
            device_id=torch.device("cpu"),
        )
    if mode == "tp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        for layer in model.layers:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(layer, init_device_mesh("cpu", (world,)), plan)
    if mode == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,))
        for unit in (*model.layers, model):
            fully_shard(unit, mesh=mesh)
    return model


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1000 * (fault == "other_data") + step)
    words = torch.randint(0, 100, (ROWS, 6), generator=draw)
    tags = torch.randint(0, CLASSES, (ROWS, 6), generator=draw)
    if mode == "tp":
        return words, tags
    return words.chunk(world)[rank], tags.chunk(world)[rank]


def reduce_by_hand(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None and fault != "not_averaged":
            dist.all_reduce(parameter.grad)
            if fault != "summed":
                parameter.grad /= world


def main() -> None:
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(7 if fault != "other_start" else 8)
    model = (LateTagger if fault == "late" else Tagger)()
    model = wrapped(model)
    if fault == "compiled":
        model = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 if fault != "other_rate" else 2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if fault == "scaler" else None
    torch.manual_seed(11)
    for step in range(4):
        parts = 2 if fault == "accumulate" else 1
        for words, tags in zip(*(tensor.chunk(parts) for tensor in batch(step)), strict=True):
            loss = model(words, tags) / parts * (1.5 if fault == "rank_scale" and rank == world - 1 else 1)
            (scaler.scale(loss) if scaler else loss).backward()
        if mode == "by_hand":
            reduce_by_hand(model)
        if fault == "zeroed" and step == 1:
            getattr(model, "module", model).layers[1].up.weight.grad.zero_()
        if fault == "clip_by_shard":
            grads = [p.grad for p in model.parameters() if p.grad is not None and p.grad.numel()]
            norm = torch.stack([getattr(g, "_local_tensor", g).norm() for g in grads]).norm()
            for grad in grads:
                getattr(grad, "_local_tensor", grad).mul_(min(1.0, 0.01 / float(norm)))
        elif base == "clip":
            clip = getattr(model, "clip_grad_norm_", None)
            clip(0.01) if clip else nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()
        print("step", step, "loss", loss.item())
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
