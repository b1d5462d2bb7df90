#!/usr/bin/env python3
"""What the start of a watched rank costs: CPU seconds, user and system, of short jobs, plain and under `nsadiag run`.

    python benchmarks/cost/start_cost.py                      # about five minutes
    python benchmarks/cost/start_cost.py --pairs 3 --only ddp
    python benchmarks/cost/start_cost.py --launcher VENV/bin/nsadiag --json

Each job runs plain and watched in turns, so that a busy machine is busy for both; a rank is asked for its CPU time as
the last thing that it does, and what is left of the whole tree is the launcher's and nsadiag's own. Figures are
medians over the pairs. A job whose library is not installed is left out, and named.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

RANKS = 2
# Runs last among the handlers of atexit, since it comes first.
MEASURED = """
import atexit, os, resource
def _tell(path=os.path.join(os.environ["START_COST"], "rank" + os.environ.get("RANK", "0"))):
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open(path, "w") as file:
        file.write(str(used.ru_utime + used.ru_stime))
atexit.register(_tell)
"""
DDP = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
rows = torch.utils.data.TensorDataset(torch.randn(160, 16), torch.randint(4, (160,)))
model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(20)], torch.nn.Linear(16, 4))
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.AdamW(model.parameters()), torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)
)
for inputs, labels in loader:
    optimizer.zero_grad()
    accelerator.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
    optimizer.step()
accelerator.end_training()
"""
TIMM = """
import timm, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(timm.create_model("resnet18", num_classes=4))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
# By what has to be installed.
JOBS = {"ddp": ("torch", DDP), "accelerate": ("accelerate", ACCELERATE), "timm": ("timm", TIMM)}


@dataclass(frozen=True)
class Cost:
    """CPU seconds of one run."""

    rank: float  # of one, on average
    around: float  # of everything else: the launcher, and nsadiag where it watches


def cost(job: Path, launcher: Path | None) -> Cost:
    """Runs the job, under `launcher` if there is one. Raises CalledProcessError where it fails."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    with tempfile.TemporaryDirectory(prefix="start-cost-") as folder:
        watched = [str(launcher), "run", "--out", f"{folder}/out", "--"] if launcher else []
        before = _children()
        subprocess.run(
            [*watched, *torchrun, str(job)],
            env={**os.environ, "START_COST": folder, "OMP_NUM_THREADS": "1"},
            check=True,
            capture_output=True,
        )
        used = _children() - before
        ranks = [float(path.read_text()) for path in Path(folder).glob("rank*")]
    return Cost(rank=statistics.mean(ranks), around=used - sum(ranks))


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compare(name: str, text: str, launcher: Path, pairs: int) -> dict[str, float]:
    """Medians over the pairs, the first of which only fills caches."""
    with tempfile.TemporaryDirectory(prefix="start-cost-") as folder:
        job = Path(folder) / f"job_{name}.py"  # not named as a library
        job.write_text(MEASURED + text)
        found = [
            (cost(job, None), cost(job, launcher))
            if number % 2
            else tuple(reversed((cost(job, launcher), cost(job, None))))
            for number in range(pairs + 1)
        ][1:]
    return {
        "plain_rank_s": statistics.median(plain.rank for plain, _ in found),
        "watched_rank_s": statistics.median(watched.rank for _, watched in found),
        "more_per_rank_s": statistics.median(watched.rank - plain.rank for plain, watched in found),
        "ratio": statistics.median(watched.rank / plain.rank for plain, watched in found),
        "plain_launcher_s": statistics.median(plain.around for plain, _ in found),
        "watched_launcher_and_nsadiag_s": statistics.median(watched.around for _, watched in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument(
        "--launcher",
        type=Path,
        default=Path(sys.executable).with_name("nsadiag"),
        help="the nsadiag to measure",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    figures = {}
    for name in arguments.only:
        library, text = JOBS[name]
        if importlib.util.find_spec(library) is None:
            print(f"{name}: left out, {library} is not installed", file=sys.stderr)
            continue
        figures[name] = compare(name, text, arguments.launcher, arguments.pairs)
        if not arguments.json:
            print(name, *(f"{key} {value:.2f}" for key, value in figures[name].items()), sep="\n    ")
    if arguments.json:
        print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
