"""Compile every attention kernel for an A100 (sm_80) or an H100 (sm_90), without having one.

usage: compile_kernels.py 80|90 [--shape paper "small packed" ...]

A call on the CPU stops at each launch, which is compiled for the target instead of run. Prints a line for each kind of
launch: target, shape, kernel, warps, registers of a thread, bytes that it spills, bytes of shared memory of a program.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from nsa.attention import BranchKV
from nsa.attention.blocks import n_compress_slots
from nsa.attention.inputs import Call
from nsa.attention.kernels.bands import band
from nsa.attention.kernels.decode import decode
from nsa.attention.kernels.ops import attend
from nsa.attention.kernels.selected import choose, gather
from nsa.cache import DecodeCache, Rows
from nsa.config import AttentionConfig

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
LENGTHS = {"compress_block": 32, "compress_stride": 16, "select_block": 64, "select_count": 4, "window": 128}
CONFIG = AttentionConfig(**LENGTHS)
LONG, SHORT = 1024, 400  # SHORT has few blocks, so a bit for each


class Shape(NamedTuple):
    """A kind of call; `described` takes tiles by descriptors, which only Hopper has."""

    name: str
    heads: int
    kv_heads: int
    dim: int
    n_tokens: int = LONG
    packed: bool = False
    described: bool = False
    decode: bool = False


SHAPES = [
    Shape(f"{name}{suffix}", heads, kv_heads, dim, **how)
    for name, heads, kv_heads, dim in (("paper", 16, 1, 128), ("small", 3, 1, 64))
    for suffix, how in (
        ("", {}),
        (" short", {"n_tokens": SHORT}),
        (" packed", {"packed": True}),
        (" described", {"described": True}),
        (" packed described", {"packed": True, "described": True}),
        (" short described", {"n_tokens": SHORT, "described": True}),
        (" decode", {"decode": True}),
    )
]


class Target:
    """What Triton asks its driver for while it compiles."""

    def __init__(self, capability: int) -> None:
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compiled(capability: int, shapes: list[Shape]) -> dict[tuple[str, str, str], Any]:
    """What each kind of launch compiles to, by shape, kernel and hash."""
    kernels: dict[tuple[str, str, str], Any] = {}
    shape = ""
    run = JITFunction.run

    def stop(self: JITFunction, *arguments: Any, grid: Any, warmup: bool, **constants: Any) -> Any:
        kernel = run(self, *arguments, grid=grid, warmup=True, **constants)
        kernels[shape, self.__name__, kernel.hash] = kernel
        return kernel

    triton.runtime.driver.set_active(Target(capability))
    torch.cuda.is_current_stream_capturing = lambda: False  # a torch for CPUs cannot say
    JITFunction.run = stop
    gather.is_hopper = lambda device: capability == 90
    for each in shapes:
        shape = each.name
        for module in (band, choose, gather):
            module.describable = lambda *_, described=each.described, **__: described
        if each.decode:
            decode_step(each)
        elif capability == 90 or not each.described:
            train(each)
    JITFunction.run = run
    return kernels


def train(shape: Shape) -> None:
    """Forward and backward of a call."""
    n = shape.n_tokens
    cu_seqlens = torch.tensor([0, n // 3, n]) if shape.packed else None
    counts = (n_compress_slots(CONFIG, n, packed=shape.packed), n, n)
    q = draw(1, n, shape.heads, shape.dim)
    k, v = (BranchKV(*(draw(1, m, shape.kv_heads, shape.dim) for m in counts)) for _ in range(2))
    gates = draw(1, n, shape.heads, 3).sigmoid()
    out = attend(Call(q, k, v, gates, CONFIG, cu_seqlens))
    out.backward(torch.ones_like(out))


@torch.no_grad()
def decode_step(shape: Shape) -> None:
    """One new token of two rows."""
    rows = Rows(torch.tensor([LONG, 5]), LONG + 8)
    cache = DecodeCache(CONFIG, rows)
    counts = (n_compress_slots(CONFIG, rows.capacity, packed=False), rows.capacity, cache.window_ring)
    keys, values = (BranchKV(*(draw(2, n, shape.kv_heads, shape.dim) for n in counts)) for _ in range(2))
    gates = draw(2, 1, shape.heads, 3).sigmoid()
    decode(draw(2, 1, shape.heads, shape.dim), keys, values, gates, rows.lengths, CONFIG)


def draw(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16, requires_grad=True)


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of the stack, where it spills to."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2])


def main() -> None:
    parser = argparse.ArgumentParser()
    # One a process: Triton keeps what it has compiled for a device, whatever the target is by then.
    parser.add_argument("target", type=int, choices=[80, 90])
    parser.add_argument("--shape", nargs="+", default=[shape.name for shape in SHAPES])
    asked = parser.parse_args()
    shapes = [shape for shape in SHAPES if shape.name in asked.shape]
    for (shape, name, _), kernel in compiled(asked.target, shapes).items():
        registers, spilled = resources(kernel.asm["cubin"])
        facts = (kernel.metadata.num_warps, registers, spilled, kernel.metadata.shared)
        print(f"sm_{asked.target}", shape, name, *facts, sep="\t", flush=True)


if __name__ == "__main__":
    main()
