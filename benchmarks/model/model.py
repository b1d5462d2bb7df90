#!/usr/bin/env python3
"""What a training step of the whole model costs, by length: NSA beside dense attention.

    python benchmarks/model/model.py                  # one GPU, ten minutes; --quick: 2k and 16k
    python benchmarks/model/model.py --gpus 2         # how DDP and FSDP2 scale from one GPU to two
    python benchmarks/model/model.py --device cpu --quick   # tries itself on a tiny model

The production configuration (12 layers, bf16, AdamW, activation checkpointing) with `nsa.train`'s own step, data and
clipping included: eager, compiled, and compiled and recorded as one CUDA graph. Dense attention is the model's control,
by cuDNN and, eager, by torch's flash kernels. "packed" rows hold documents, which are kept apart. All of one length take turns of some steps in one process; figures are medians of turns. Memory is the peak of one trainer alone: weights, optimizer, activations, graph.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PRODUCTION = "m7c_125m_2xa100_production"
LENGTHS = (2048, 8192, 16384, 32768)
QUICK_LENGTHS = (2048, 16384)
TINY_LENGTHS = (64, 128)  # of --device cpu
TURN_S, WARM_UP_STEPS = 0.5, 6  # past a graph's own warm-up
SCALED = ("ddp", "fsdp2")
WORKER = "--worker"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One trainer: which attention, and how its step runs."""

    attention: str
    sdpa: str  # what dense attention is made of
    how: str
    documents: bool = False  # rows of documents that are kept apart, and not of one sequence each

    def name(self) -> str:
        return f"{self.sdpa or self.attention}{' packed' if self.documents else ''}, {self.how}"

    def overrides(self) -> list[str]:
        """What differs from the configuration."""
        compiled, recorded = self.how != "eager", self.how == "graph"
        options = [f"model.attention={self.attention}", f"train.compile={compiled}"]
        documents = ["data.source=text", f"data.path={document_file()}"] if self.documents else []
        return [*options, f"train.cuda_graph={recorded}", *documents]


# A compiled block is compiled once for all trainers of a process, with the kernels that were allowed then: so dense is
# compiled with cuDNN alone, the faster.
VARIANTS = [
    Variant(attention=attention, sdpa=sdpa, how=how)
    for attention, sdpa in (("nsa", ""), ("dense", "dense cudnn"), ("dense", "dense flash"))
    for how in ("eager", "compiled", "graph")
    if sdpa != "dense flash" or how == "eager"
]
VARIANTS += [Variant(attention="nsa", sdpa="", how=how, documents=True) for how in ("eager", "compiled")]


@functools.cache
def document_file() -> Path:
    """64 MB of documents as long as FineWeb-Edu's are: lognormal, half of them under 3,000 bytes."""
    generator = random.Random(0)
    path = Path(tempfile.mkdtemp(prefix="documents_"), "documents")
    with path.open("wb") as file:
        while file.tell() < 64e6:
            file.write(generator.randbytes(int(generator.lognormvariate(8, 1))).replace(b"\0", b" ") + b"\0")
    return path


def main() -> None:
    """A table on stdout, or with --json one document; progress on stderr."""
    options = parse(sys.argv[1:])
    import torch

    if options.worker:
        measure_rank(options)
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: this benchmark needs a GPU\nhint: --device cpu --quick tries it on a tiny model")
    figures = measure_scaling(options) if options.gpus > 1 else measure_lengths(options)
    if options.json:
        print(json.dumps({"machine": describe_machine(), "figures": figures}, indent=1))
    else:
        print_table(figures)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="2k and 16k tokens only, fewer turns")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--gpus", type=int, default=1, help="more than 1: scaling from one GPU to so many")
    parser.add_argument("--lengths", type=int, nargs="+", help="tokens of a sequence")
    parser.add_argument("--only", default="", help="variants whose name contains this")
    parser.add_argument("--turns", type=int, help="turns of each variant; default 7, with --quick 3")
    parser.add_argument("override", nargs="*", help="of the configuration, as data.batch_size=16")
    parser.add_argument(WORKER, choices=SCALED, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    short = TINY_LENGTHS if options.device == "cpu" else QUICK_LENGTHS
    options.lengths = options.lengths or (short if options.quick else LENGTHS)
    options.turns = options.turns or (3 if options.quick else 7)
    return options


def configure(options: argparse.Namespace, length: int, *overrides: str) -> Any:
    """The production configuration, for one GPU and one length unless `overrides` say otherwise."""
    from nsa.options import load_train_config

    source = "tiny" if options.device == "cpu" else PRODUCTION
    fixed = ["train.steps=1000000", f"data.seq_len={length}", f"parallel.device={options.device}"]
    return load_train_config(source, ["parallel.mode=single", *fixed, *overrides, *options.override])


def tokens_a_step(config: Any) -> int:
    """Of one rank."""
    return config.data.seq_len * config.data.batch_size * config.train.accumulate


def measure_lengths(options: argparse.Namespace) -> dict[str, Any]:
    """By length, by variant: tokens a second, and the peak of memory."""
    figures = {}
    for length in options.lengths:
        figures[str(length)] = measure_length(options, length)
        print(f"{length} tokens: done", file=sys.stderr)
    return figures


def measure_length(options: argparse.Namespace, length: int) -> dict[str, Any]:
    """All variants in turns."""
    import torch

    torch._dynamo.reset()  # what was compiled for another length counts against a limit
    figures: dict[str, dict[str, Any]] = {}
    turns: dict[str, Callable[[], float]] = {}
    for variant in VARIANTS:
        unfit = options.device == "cpu" and variant.how == "graph"
        if unfit or options.only not in variant.name():
            continue
        choose_sdpa(variant.sdpa)
        run, memory = start_measured(options, length, *variant.overrides())
        seconds = timed(run, 2) / 2
        steps = max(2, round(TURN_S / seconds / (5 if options.quick else 1)))
        turns[variant.name()] = lambda run=run, steps=steps, sdpa=variant.sdpa: turn(run, steps, sdpa)
        figures[variant.name()] = {"peak_memory_gib": memory}
    rates: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(options.turns):
        for name, take in turns.items():
            rates[name].append(take())
    for name, each in rates.items():
        rate = tokens_a_step(run.config) / statistics.median(each)
        figures[name] |= {"tokens_per_s": round(rate), "ms": round(1e3 * statistics.median(each), 3)}
        figures[name]["spread"] = round(max(each) / min(each) - 1, 3)
    return figures


def start_measured(options: argparse.Namespace, length: int, *overrides: str) -> tuple[Any, float | None]:
    """A trainer past its first steps, and the GiB that it took at most while it got there."""
    import torch

    from nsa import train
    from nsa.parallel import process_group

    cuda = options.device == "cuda"
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved() if cuda else 0
    config = configure(options, length, *overrides)
    with process_group(config.parallel) as placement:  # alone: there is none to leave
        run = train._Run(config, placement)
    timed(run, WARM_UP_STEPS)
    memory = round((torch.cuda.max_memory_reserved() - before) / 2**30, 2) if cuda else None
    return run, memory


def turn(run: Any, steps: int, sdpa: str) -> float:
    """Seconds a step."""
    choose_sdpa(sdpa)
    return timed(run, steps) / steps


def timed(run: Any, steps: int) -> float:
    """Seconds of so many steps, until the device has done them."""
    import torch

    cuda = run.placement.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        run._step()
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def choose_sdpa(name: str) -> None:
    """Which of torch's kernels dense attention may use; the compiler asks when it traces."""
    import torch

    torch.backends.cuda.enable_flash_sdp(name != "dense cudnn")
    torch.backends.cuda.enable_cudnn_sdp(name != "dense flash")


def measure_scaling(options: argparse.Namespace) -> dict[str, Any]:
    """By length, by mode: tokens a second on one GPU and on all, and the share of ideal; jobs take turns."""
    figures: dict[str, Any] = {}
    for mode in SCALED:
        turns: list[tuple[dict[str, float], dict[str, float]]] = []
        for _ in range(1 if options.quick else 3):
            turns.append((run_ranks(options, mode, 1), run_ranks(options, mode, options.gpus)))
        for length in map(str, options.lengths):
            alone, together = (statistics.median(turn[i][length] for turn in turns) for i in (0, 1))
            efficiency = round(together / alone / options.gpus, 3)
            name = {"1": round(alone), str(options.gpus): round(together), "efficiency": efficiency}
            figures.setdefault(length, {})[mode] = name
            print(f"{mode} {length} tokens: {name}", file=sys.stderr)
    return figures


def run_ranks(options: argparse.Namespace, mode: str, ranks: int) -> dict[str, float]:
    """Tokens a second of all ranks together, by length: one job, as starting and compiling take most of its time."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    lengths = [str(length) for length in options.lengths]
    arguments = ["--device", options.device, "--lengths", *lengths, WORKER, mode, *options.override]
    command = [sys.executable, *launcher, __file__, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        sys.exit(f"error: {mode} on {ranks} ranks ended with code {done.returncode}")
    rates: dict[str, float] = json.loads(lines[-1])
    return rates


def measure_rank(options: argparse.Namespace) -> None:
    """One rank of a job: all take the same turns, and rank 0 prints the rates of all."""
    import torch

    from nsa.parallel import process_group

    modes = [f"parallel.mode={options.worker}", f"train.compile={options.device == 'cuda'}"]
    with process_group(configure(options, options.lengths[0], *modes).parallel) as placement:
        rates = {}
        for length in options.lengths:
            torch._dynamo.reset()
            config = configure(options, length, *modes)
            rate = torch.tensor(rank_rate(options, config, placement), device=placement.device)
            torch.distributed.all_reduce(rate)
            rates[str(length)] = rate.item()
        if placement.rank == 0:
            print(json.dumps(rates), flush=True)


def rank_rate(options: argparse.Namespace, config: Any, placement: Any) -> float:
    """Tokens a second of this rank; its model is gone before the process group is left."""
    from nsa import train

    run = train._Run(config, placement)
    timed(run, WARM_UP_STEPS)
    steps = 20 if options.device == "cuda" else 2  # the same on every rank
    seconds = statistics.median(timed(run, steps) / steps for _ in range(5))
    run.close()
    return tokens_a_step(config) / seconds


def describe_machine() -> dict[str, str]:
    """What the figures were measured with."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "gpu": gpu, "torch": torch.__version__, "cuda": str(torch.version.cuda), "python": platform.python_version(),
    }  # fmt: skip


def print_table(figures: dict[str, Any]) -> None:
    """A row for each variant or mode, a column for each length."""
    rows = list(dict.fromkeys(name for column in figures.values() for name in column))
    for what in dict.fromkeys(key for column in figures.values() for each in column.values() for key in each):
        print(f"\n{what:24}" + "".join(f"{length:>12}" for length in figures))
        for row in rows:
            values = (column.get(row, {}).get(what) for column in figures.values())
            print(f"{row:24}" + "".join(f"{value if value is not None else '':>12}" for value in values))


if __name__ == "__main__":
    main()
