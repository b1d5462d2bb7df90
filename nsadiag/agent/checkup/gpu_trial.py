"""Loads all GPUs for some seconds, in a process of its own that has torch: `python gpu_trial.py SECONDS`.

Prints a line of JSON after each stage, so that one which never ends hides none before it:

- `devices`: names, and the identifiers by which the driver knows them
- `products`: by GPU the same matrix product time and again, all GPUs at once: how many, how many that differ in a bit from
  its first, seconds of one, and the sum of the first one's bits
- `pairs`: bytes a second from each GPU to each other one
- `together`: an all-reduce over all GPUs by NCCL, its bytes a second, and the values that came out wrong
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch
from torch.cuda import nccl

SIZES = (8192, 4096, 2048)  # of a square matrix in bf16; three of them, and what the comparison takes
ROOM = 6  # matrices
BATCH = 8  # products between two looks at the clock
PAIR_BYTES, PAIR_TIMES = 256 * 2**20, 8
TOGETHER_BYTES, TOGETHER_TIMES = 64 * 2**20, 10


def main() -> None:
    seconds = float(sys.argv[1])
    count = torch.cuda.device_count()
    gpus = range(count)
    names = [torch.cuda.get_device_name(gpu) for gpu in gpus]
    uuids = [str(getattr(torch.cuda.get_device_properties(gpu), "uuid", "")) for gpu in gpus]
    say("devices", names=names, uuids=uuids)
    say("products", gpus=products(count, seconds))
    say("pairs", pairs=[pair(a, b) for a in gpus for b in gpus if a != b])
    say("together", **together(count))


def say(stage: str, **told: Any) -> None:
    print(json.dumps({"stage": stage, **told}), flush=True)


class Product:
    """The product of two matrices that are the same on every GPU, on one of them."""

    def __init__(self, gpu: int) -> None:
        self.gpu = gpu
        free, _ = torch.cuda.mem_get_info(gpu)
        self.size = next((size for size in SIZES if ROOM * 2 * size**2 < free), 0)
        if not self.size:
            raise RuntimeError(f"{free >> 20} MiB are free")
        draw = torch.Generator(device=f"cuda:{gpu}").manual_seed(0)
        self.a, self.b = (
            torch.randn(self.size, self.size, generator=draw, device=f"cuda:{gpu}").bfloat16()
            for _ in range(2)
        )
        self.first = self.a @ self.b
        self.result = torch.empty_like(self.first)
        self.differ = torch.zeros((), dtype=torch.int64, device=f"cuda:{gpu}")
        self.seconds: list[float] = []
        self.queued: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = []

    def again(self) -> None:
        """Some products more, which the GPU makes while others are asked."""
        spans = []
        with torch.cuda.device(self.gpu):
            for _ in range(BATCH):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                torch.matmul(self.a, self.b, out=self.result)
                end.record()
                self.differ += self.result.view(torch.int16).ne(self.first.view(torch.int16)).any()
                spans.append((begin, end))
        self.queued.append(spans)

    def wait(self, most: int) -> None:
        """Until no more than so many calls of `again` are queued: with one, the GPU always has work."""
        while len(self.queued) > most:
            spans = self.queued.pop(0)
            spans[-1][1].synchronize()
            self.seconds += [begin.elapsed_time(end) / 1e3 for begin, end in spans]

    def told(self) -> dict[str, object]:
        """Its figures, once the GPU is done."""
        self.wait(0)
        return {
            "size": self.size,
            "products": len(self.seconds),
            "differ": int(self.differ),
            "seconds": statistics.median(self.seconds),
            "bits": int(self.first.view(torch.int16).sum(dtype=torch.int64)),
        }


def products(count: int, seconds: float) -> list[dict[str, object]]:
    """By GPU; `error` where it had no room, or failed."""
    running: dict[int, Product] = {}
    told: dict[int, dict[str, object]] = {}
    for gpu in range(count):
        try:
            running[gpu] = Product(gpu)
        except RuntimeError as error:
            told[gpu] = {"error": str(error).splitlines()[0]}
    for gpu in running:
        torch.cuda.synchronize(gpu)
    until = time.monotonic() + seconds
    while running and time.monotonic() < until:
        for product in running.values():
            product.again()
        for product in running.values():
            product.wait(1)
    told |= {gpu: product.told() for gpu, product in running.items()}
    return [told[gpu] for gpu in range(count)]


def pair(a: int, b: int) -> dict[str, object]:
    """Copies of one GPU's memory to another's."""
    try:
        source = torch.ones(PAIR_BYTES, dtype=torch.uint8, device=f"cuda:{a}")
        target = torch.empty(PAIR_BYTES, dtype=torch.uint8, device=f"cuda:{b}")
        target.copy_(source)
        torch.cuda.synchronize(a)
        torch.cuda.synchronize(b)
        begin = time.perf_counter()
        for _ in range(PAIR_TIMES):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(a)
        torch.cuda.synchronize(b)
        took = time.perf_counter() - begin
        wrong = int(target.ne(1).sum())
    except RuntimeError as error:
        return {"from": a, "to": b, "error": str(error).splitlines()[0]}
    return {"from": a, "to": b, "bytes_per_s": PAIR_BYTES * PAIR_TIMES / took, "wrong": wrong}


def together(count: int) -> dict[str, object]:
    """Whole numbers small enough that their sum is exact, summed over all GPUs in one process."""
    given = [torch.full((TOGETHER_BYTES // 4,), float(gpu + 1), device=f"cuda:{gpu}") for gpu in range(count)]
    sums = [torch.empty_like(tensor) for tensor in given]
    nccl.all_reduce(given, sums)
    for gpu in range(count):
        torch.cuda.synchronize(gpu)
    begin = time.perf_counter()
    for _ in range(TOGETHER_TIMES):
        nccl.all_reduce(given, sums)
    for gpu in range(count):
        torch.cuda.synchronize(gpu)
    took = time.perf_counter() - begin
    wanted = count * (count + 1) / 2
    moved = 2 * (count - 1) / count * TOGETHER_BYTES * TOGETHER_TIMES
    return {
        "nccl": ".".join(map(str, nccl.version())),
        "bytes_per_s": moved / took,
        "wrong": [int(tensor.ne(wanted).sum()) for tensor in sums],
    }


if __name__ == "__main__":
    main()
