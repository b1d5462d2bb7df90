"""CUDA's user-triggered core dumps: the environment that a job needs, and where the driver then puts its files."""

from __future__ import annotations

from pathlib import Path

from nsadiag.evidence.layout import make_private_dir

# Kernels, their places and registers: what tells where a kernel hangs. Memory would be as large as the GPU's.
# skip_abort: without it the driver ends the process once the dump is written. With it the process lives on, but its
# context does not: every later call fails with "unspecified launch failure" (driver 580, Xid 43).
FLAGS = (
    "skip_nonrelocated_elf_images", "skip_global_memory", "skip_shared_memory", "skip_local_memory",
    "skip_constbank_memory", "skip_abort",
)  # fmt: skip


def folder(node: Path) -> Path:
    """The folder of core dumps in a node's directory."""
    return node / "cuda"


def pipe(node: Path, pid: int) -> Path:
    """Made by the driver when the process first uses CUDA; a byte written to it triggers the dump."""
    return folder(node) / f"pipe.{pid}"


def core(node: Path, pid: int) -> Path:
    return folder(node) / f"core.{pid}"


def environment(node: Path) -> dict[str, str]:
    """Makes the folder too. The driver replaces %p by the process's number."""
    place = make_private_dir(folder(node)).resolve()
    return {
        "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
        "CUDA_COREDUMP_PIPE": str(place / "pipe.%p"),
        "CUDA_COREDUMP_FILE": str(place / "core.%p"),
        "CUDA_COREDUMP_GENERATION_FLAGS": ",".join(FLAGS),
    }
