"""The first step compiles: a C++ compiler works for a long time, and the ranks only wait for it.

Modelled on pytorch/pytorch #108971, where compilation takes up to half an hour and the job is ended for
making no progress. Here an operator is built from source, as `torch.utils.cpp_extension`
and inductor do; rank 1 waits in a barrier for rank 0's build. Without a compiler the sources are parsed.

On plain torchrun: silence while the compiler works, then twenty steps; exit code 0.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: healthy
  class: healthy
  guilty_ranks: []
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

COMPILE_S = float(os.environ.get("COMPILE_S", "20"))
SOURCE = """
template <int N> struct Tile {{ static double run(double x) {{ return Tile<N - 1>::run(x) * x + {salt}; }} }};
template <> struct Tile<0> {{ static double run(double x) {{ return x; }} }};
extern "C" double kernel(double x) {{ return Tile<800>::run(x); }}
"""


def build(folder: Path) -> int:
    """One variant of the kernel after the other, as an autotuner asks for them."""
    compiler, started, variants = shutil.which("g++") or shutil.which("cc"), time.monotonic(), 0
    while time.monotonic() - started < COMPILE_S:
        source = folder / f"kernel_{variants}.cpp"
        source.write_text(SOURCE.format(salt=variants))
        library = source.with_suffix(".so")
        command = [compiler, "-O3", "-shared", "-fPIC", "-o", str(library), str(source)]
        subprocess.run(
            command if compiler else [sys.executable, "-m", "compileall", "-qf", torch.__path__[0]]
        )
        variants += 1
    return variants


def main() -> None:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    if rank == 0:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{build(Path(folder))} variants built", flush=True)
    dist.barrier()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(20):
        batch = torch.randn(16, 64, device=device)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
