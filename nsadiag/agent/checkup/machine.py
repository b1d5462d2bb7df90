"""Checks of the machine: room, the kernel's help, GPUs and NVIDIA's tools."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nsadiag.agent.captures.gpu import gpus, nccl_ras
from nsadiag.agent.captures.kernel.cgroups import cgroup
from nsadiag.agent.captures.target import CaptureError, NotApplicable
from nsadiag.agent.checkup.check import Check, Status
from nsadiag.deadlines.deadline import Deadline

MIB, GIB = 2**20, 2**30
# A black box of a MiB a rank, captures of some MiB, and the job's own logs.
LEAST_DISK, LITTLE_DISK = 16 * MIB, GIB
LITTLE_SHM = GIB


def disk(where: Path) -> Check:
    """Room where runs are written."""
    free = shutil.disk_usage(where).free
    status: Status = "works"
    remedy = ""
    if free < LEAST_DISK:
        status, remedy = "missing", "make room, or write elsewhere: nsadiag run --out DIR"
    elif free < LITTLE_DISK:
        status, remedy = "limited", "runs of many ranks want more: nsadiag run --out DIR"
    return Check(
        name="disk",
        status=status,
        detail=f"{_size(free)} free in {where}",
        remedy=remedy,
        essential=True,
    )


def shared_memory() -> Check:
    """/dev/shm: data-loader workers and NCCL put their buffers there, and die or hang where it is full."""
    name, place = "shared memory", Path("/dev/shm")
    if not place.is_dir():
        return Check(name=name, status="missing", detail="there is no /dev/shm", remedy="mount a tmpfs there")
    usage = shutil.disk_usage(place)
    detail = f"/dev/shm: {_size(usage.free)} free of {_size(usage.total)}"
    if usage.free < LITTLE_SHM:
        return Check(
            name=name, status="limited", detail=detail, remedy="docker run --shm-size 8g, or --ipc host"
        )
    return Check(name=name, status="works", detail=detail)


def deaths() -> Check:
    """A pidfd wakes us at the moment a rank dies, while its exit status can still be read."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError) as error:
        return Check(
            name="deaths", status="limited", detail=f"no pidfd: {error}",
            remedy="Linux 5.3 or later; until then torchrun's own report of exit codes is used",
        )  # fmt: skip
    return Check(name="deaths", status="works", detail="pidfd: seen at the moment they happen")


def memory_limit() -> Check:
    """The cgroup's limit and its count of out-of-memory kills."""
    found = cgroup(os.getpid())
    if found["used_bytes"] is None:
        return Check(
            name="memory limit", status="limited", detail="no cgroup tells: an out-of-memory kill shows as SIGKILL only",
            remedy="mount the cgroup file system into the container",
        )  # fmt: skip
    limit = "none" if found["limit_bytes"] is None else _size(found["limit_bytes"])
    return Check(
        name="memory limit",
        status="works",
        detail=f"cgroup v{found['version']}: limit {limit}, {found['oom_kills']} kills",
    )


def gpu_state() -> Check:
    """Utilisation, memory, clocks and processes of the GPUs."""
    name = "GPU state"
    if not gpus.is_there():
        return Check(name=name, status="not here", detail="no NVIDIA driver")
    try:
        document, by = gpus.state()
    except CaptureError as error:
        return Check(
            name=name,
            status="missing",
            detail=str(error),
            remedy="pip install nvidia-ml-py; does nvidia-smi work?",
        )
    devices = document["devices"]
    detail = f"{by} sees {len(devices)}: {', '.join(sorted({str(d['name']) for d in devices}))}"
    return Check(name=name, status="works", detail=detail)


def kernel_log() -> Check:
    """Xid errors of the GPU's driver and out-of-memory kills are reported there."""
    _, gap = gpus.kernel_log()
    if gap is None:
        return Check(name="kernel log", status="works", detail="readable: Xid errors would be seen")
    remedy = (
        "sudo sysctl kernel.dmesg_restrict=0, or root; in a container: --cap-add SYSLOG --device /dev/kmsg"
    )
    status: Status = "limited" if gpus.is_there() else "not here"
    return Check(name="kernel log", status=status, detail=gap, remedy=remedy)


def nccl_ras_port() -> Check:
    """NCCL's status service: there only while a job with NCCL runs."""
    name = "NCCL RAS"
    at = os.environ.get("NCCL_RAS_ADDR", nccl_ras.DEFAULT_ADDRESS)
    if os.environ.get("NCCL_RAS_ENABLE") == "0":
        return Check(
            name=name, status="limited", detail="NCCL_RAS_ENABLE is 0", remedy="unset NCCL_RAS_ENABLE"
        )
    try:
        text, as_json = nccl_ras.ask(*nccl_ras.address(at), Deadline(nccl_ras.TOTAL_S))
    except NotApplicable:
        return Check(
            name=name,
            status="not here",
            detail=f"nobody at {at}: no NCCL job runs now (NCCL 2.24 or later has it)",
        )
    except CaptureError as error:
        return Check(
            name=name,
            status="limited",
            detail=str(error),
            remedy="another service there? set NCCL_RAS_ADDR=localhost:PORT",
        )
    return Check(
        name=name,
        status="works",
        detail=f"a job answers at {at}, {len(text)} bytes of {'JSON' if as_json else 'text'}",
    )


def cuda_gdb() -> Check:
    """Reads the core dumps of `nsadiag run --cuda-core`."""
    name = "GPU core dumps"
    if not gpus.is_there():
        return Check(name=name, status="not here", detail="no NVIDIA driver")
    found = shutil.which("cuda-gdb")
    if found:
        return Check(name=name, status="works", detail=f"{found} reads what run --cuda-core takes")
    return Check(
        name=name,
        status="limited",
        detail="cuda-gdb is not on PATH",
        remedy="install cuda-gdb; it is part of the CUDA toolkit",
    )


def _size(number: int) -> str:
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{number / MIB:.0f} MiB"
