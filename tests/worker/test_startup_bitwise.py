"""Watched or not, a job computes the same bits: under DDP and FSDP2, with every way of checkpointing, compiled or not."""

import pytest
from support.processes.ranks import Ranks

from nsadiag.evidence.layout import RunDir

TRAIN = """
import contextlib, hashlib, itertools, os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down, self.drop = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x))).relu_()))

class Model(nn.Module):
    def __init__(self, checkpointing):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 4)
        self.checkpointing = checkpointing
        if checkpointing == "wrapper":
            for number, block in enumerate(self.blocks):
                self.blocks[number] = wrapper.checkpoint_wrapper(block)

    def forward(self, x):
        for block in self.blocks:
            if self.checkpointing in ("reentrant", "non-reentrant"):
                x = checkpoint(block, x, use_reentrant=self.checkpointing == "reentrant")
            else:
                x = block(x)
        return {"logits": self.head(x)}

def train(parallel, checkpointing, compiled):
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Model(checkpointing)
    if parallel == "fsdp2":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if parallel == "ddp":
        model = DDP(model)
    if compiled:
        model = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
    seen = hashlib.sha256()
    torch.manual_seed(dist.get_rank())
    for _ in range(6):
        batch = torch.randn(4, 16, requires_grad=True)
        optimizer.zero_grad()
        loss = model(batch)["logits"].square().mean()
        loss.backward()
        step()
        seen.update(loss.detach().numpy().tobytes())
    for parameter in model.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        gradient = parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad
        seen.update(local.detach().numpy().tobytes() + gradient.numpy().tobytes())
    seen.update(torch.get_rng_state().numpy().tobytes())
    print(f"rank {dist.get_rank()} {parallel} {checkpointing} {compiled} {seen.hexdigest()}", flush=True)

if __name__ == "__main__":
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=size)
    compiled = HOW == "compiled"
    ways = ("none", "non-reentrant") if compiled else ("none", "reentrant", "non-reentrant", "wrapper")
    for parallel, checkpointing in itertools.product(("ddp", "fsdp2"), ways):
        train(parallel, checkpointing, compiled)
    dist.barrier()
    dist.destroy_process_group()
"""


def lines(printed: list[str]) -> list[str]:
    return sorted(line for text in printed for line in text.splitlines() if line.startswith("rank "))


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("how", ["eager", pytest.param("compiled", marks=pytest.mark.slow)])
def test_a_watched_job_computes_the_same_bits(ranks: Ranks, how: str) -> None:
    # `none` is the control: the same start, with nothing patched inside the ranks.
    seen = {}
    for probes in ("none", "light", "light,invariants", "full,parity"):
        (ranks.jobs.directory / "store").unlink(missing_ok=True)
        ranks.run = RunDir(path=ranks.jobs.directory / probes)
        ranks.start(TRAIN.replace("HOW", repr(how)), size=2, probes=probes)
        seen[probes] = lines(ranks.end()[-2:])
        gaps = [p.read_text() for p in ranks.run.path.glob("ranks/*/gaps.jsonl")]
        assert not [gap for gap in gaps if "failed" in gap or "stepped aside" in gap]
    assert len(seen["none"]) == (16 if how == "eager" else 8)
    assert seen["light"] == seen["none"]
    assert seen["light,invariants"] == seen["none"]
    assert seen["full,parity"] == seen["none"]
