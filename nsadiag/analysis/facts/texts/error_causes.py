"""Causes that an error's own text names, with what to do about them: the first row that fits, of all its lines."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nsadiag.evidence.documents.exceptions import Cause
from nsadiag.evidence.records import Act


@dataclass(frozen=True, kw_only=True)
class ErrorCause:
    """One cause outside the line that raised: the words that tell of it, and what helps."""

    pattern: str
    means: str  # a clause: what has happened
    fix: str
    actions: tuple[Act, ...] = ("fix environment",)
    next: str = ""  # a command that shows more
    cls: str = ""  # where the error is not that of the rank that raised it, but tells of the job

    def fits(self, text: str) -> bool:
        return re.search(self.pattern, text, re.IGNORECASE | re.DOTALL) is not None


ROWS = (
    ErrorCause(
        pattern=r"uncorrectable (?:NVLink|ECC|memory) error|uncorrectable error encountered|hardware error|GPU is lost|fallen off the bus|\bXid\b",
        means="the GPU has failed",
        fix="Drain that node and test or replace the GPU (nvidia-smi -q -d ECC, dmesg -T | grep -i xid); start the job again without it.",
        actions=("exclude host", "retry"),
        next="nvidia-smi -q -d ECC,PAGE_RETIREMENT; dmesg -T | grep -i xid",
    ),
    ErrorCause(
        pattern=r"(?:/dev/shm|shared memory|shm_open|shmutils).{0,300}No space left on device|No space left on device.{0,300}(?:/dev/shm|shared memory)"
        r"|insufficient shared memory|out of shared memory|unable to (?:open|allocate) shared memory",
        means="/dev/shm is full",
        fix="Give the container a larger /dev/shm: docker run --shm-size=16g (or --ipc=host); in Kubernetes a volume emptyDir {medium: Memory} mounted at /dev/shm.",
        next="df -h /dev/shm",
    ),
    ErrorCause(
        pattern=r"No space left on device|Disk quota exceeded",
        means="the disk is full",
        fix="Free the file system that it writes to, or write elsewhere (checkpoints, caches, TMPDIR).",
        next="df -h; df -i",
    ),
    ErrorCause(
        pattern=r"EADDRINUSE|address already in use",
        means="another process holds the port",
        fix="Another job, or what is left of an earlier one, holds that port: choose another one (--master-port, MASTER_PORT, or --rdzv-endpoint=HOST:0), or end that process.",
        next="ss -ltnp | grep <the port>",
    ),
    ErrorCause(
        pattern=r"no socket interface found|No interface found|Unable to find address for|Unable to resolve hostname|gai error|Temporary failure in name resolution"
        r"|GLOO_SOCKET_IFNAME|connectFullMesh failed.{0,300}127\.0\.0\.1|127\.0\.[01]\.1.{0,200}connectFullMesh",
        means="ranks have no address under which the others reach them",
        fix="Name the interface that the hosts reach each other by: GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME (ip -br addr shows them); a host's own name must not resolve to 127.0.0.1.",
        next="ip -br addr; getent hosts $(hostname)",
    ),
    ErrorCause(
        pattern=r"Duplicate GPU detected",
        means="two ranks use one GPU",
        fix="Give each rank its own GPU before the first collective: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])); and let no two ranks see the same CUDA_VISIBLE_DEVICES.",
        actions=("fix code",),
    ),
    ErrorCause(
        pattern=r"invalid device ordinal|no CUDA-capable device|No CUDA GPUs are available",
        means="the process does not see the GPU that it asks for",
        fix="Let each process take a GPU that it sees: torch.cuda.set_device(local rank modulo torch.cuda.device_count()), and give it as many as it needs (CUDA_VISIBLE_DEVICES, --gpus-per-task, the pod's limits).",
        actions=("fix code",),
        next="nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES   # within one task",
    ),
    ErrorCause(
        cls="rendezvous_mismatch",
        pattern=r"server socket has failed to (?:listen|bind).{0,400}(?:EACCES|[Pp]ermission denied)",
        means="the process may not listen on that port",
        fix="Choose a port above 1023 (--master-port, MASTER_PORT, --rdzv-endpoint).",
    ),
    ErrorCause(
        pattern=r"driver version is insufficient|no kernel image is available|unsupported toolchain|forward compatibility was attempted|CUDA-capable device\(s\) is/are busy or unavailable|system not yet initialized",
        means="the GPU and its driver do not fit this build",
        fix="Install a build of torch for this GPU and driver (nvidia-smi shows both), or a newer driver; for 'not yet initialized' start the fabric manager.",
        next="nvidia-smi; python -m torch.utils.collect_env",
    ),
    ErrorCause(
        pattern=r"CUDA error: an illegal memory access|CUDA error: unspecified launch failure|CUDA error: misaligned address|an illegal instruction was encountered",
        means="",
        fix="Find the kernel: run once with CUDA_LAUNCH_BLOCKING=1, whose traceback stands at the launch that fails. Where that is in NCCL or another library, try a newer version of it.",
        actions=("unknown", "fix code"),
        next="CUDA_LAUNCH_BLOCKING=1 <the same command>",
    ),
    ErrorCause(
        cls="collective_args_mismatch",
        pattern=r"collective mismatch error|local size \d+ remote size \d+|[Mm]essage truncated ?:? receiv|mismatch in collective sizes|Mismatched collective detected",
        means="the two ends of a connection met in calls of different sizes",
        fix="Let all ranks issue the same collectives in the same order with the same sizes: the flight recorder's dumps of all ranks show the first call that differs.",
        actions=("fix code",),
        next="TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 <the same command>",
    ),
    ErrorCause(
        cls="network_stall",
        pattern=r"No route to host|Network is unreachable|NET/\w+ ?:.{0,200}(?:fail|error|status[= ](?:12|5|10|13)\b|timed? ?out)|IBV_WC_\w*RETRY"
        r"|(?:transport |remote )?retry (?:counter |count )?exceeded|ibv_\w+ failed|Call to ibv_|OFI .{0,200}(?:fail|error|undeliverable)|unreachable remote|undeliverable",
        means="the network between ranks failed",
        fix="Test the network between these hosts alone: nccl-tests (all_reduce_perf) on two of them, then NCCL_IB_DISABLE=1 or NCCL_SOCKET_IFNAME to tell the fabric from the rest; ibstat, ip -br addr and the switch's counters for a port that is down.",
        actions=("unknown",),
        next="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET <the same command>",
    ),
    ErrorCause(
        cls="network_stall",
        pattern=r"has inconsistent 0 params",
        means="the first collective of the ranks has delivered nothing",
        fix="DDP compares what ranks have sent each other, and a count of 0 is what arrives where the transport does not work: test it alone (nccl-tests, or an all_reduce of one tensor) on these hosts, with NCCL_DEBUG=INFO, then without peer-to-peer (NCCL_P2P_DISABLE=1).",
        actions=("unknown",),
        next="NCCL_DEBUG=INFO <the same command>",
    ),
    ErrorCause(
        cls="rendezvous_mismatch",
        pattern=r"client socket has (?:timed out|failed)|RendezvousTimeoutError|RendezvousConnectionError|\b\d+/\d+ clients joined|waiting for clients"
        r"|failed to connect to .{0,200}(?:TCPStore|MASTER|master)|server socket has failed to (?:listen|bind)|could not be resolved|Name or service not known",
        means="the ranks did not find each other at the start",
        fix="Let every node start with the same address, port and number of nodes: MASTER_ADDR has to resolve to the first node on all of them (getent hosts NAME), its port has to be free and open between them, and --nnodes has to be the number of nodes that do start.",
        actions=("unknown",),
        next="getent hosts $MASTER_ADDR; nc -vz $MASTER_ADDR $MASTER_PORT   # on each node",
    ),
    ErrorCause(
        pattern=r"unhandled system error|ncclSystemError|unhandled cuda error|ncclUnhandledCudaError|ncclInternalError|internal error",
        means="",
        fix="NCCL's own log names the call that failed, and the rank: run with NCCL_DEBUG=WARN and read the lines of NCCL WARN.",
        actions=("unknown", "fix code"),
        next="NCCL_DEBUG=INFO <the same command>",
    ),
    ErrorCause(
        pattern=r"NCCL error|ncclInvalidUsage|ncclInvalidArgument|gloo::|c10d::",
        means="",
        fix="",
        actions=("unknown", "fix code"),
    ),
)  # fmt: skip
# The last line of an error of NCCL's says what its type does not.
LONGEST = 200
LAST_ERROR = re.compile(r"Last error:\s*(?P<what>\S[^\n]*)")


def cause_in(exception: Cause) -> ErrorCause | None:
    """The row for the text of an exception; None where the text names no such cause."""
    text = f"{exception.type}: {exception.message}"
    return next((row for row in ROWS if row.fits(text)), None)


def last_error(exception: Cause) -> str:
    """The failure that NCCL names last; empty where it names none."""
    found = LAST_ERROR.search(exception.message)
    return found["what"].strip()[:LONGEST] if found else ""


def is_its_own(exception: Cause) -> bool:
    """Whether an error that looks like the loss of a peer names a cause on its own side."""
    row = cause_in(exception)
    return row is not None and bool(row.means) and not row.cls
