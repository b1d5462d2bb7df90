"""NCCL's warnings and errors, as NCCL_DEBUG=WARN shows them and torch repeats them."""

from nsadiag.analysis.ingest.messages.rows.row import MessageRow
from nsadiag.evidence.messages import (
    CommunicatorStep,
    HardwareFault,
    LostPeer,
    StatedError,
    TransportWarning,
)

NET_IB = "NVIDIA/nccl src/transport/net_ib.cc"
SOCKET = "NVIDIA/nccl src/misc/socket.cc"
ERRORS = "pytorch/pytorch torch/csrc/distributed/c10d/NCCLUtils.cpp"

INIT = (
    r"NCCL INFO (?:ncclCommInit\w+ |ncclCommSplit )?comm \S+ rank (?P<member>\d{1,9}) n?[rR]anks (?P<size>\d{1,9}) .*?"
    r"commId (?P<communicator>0x[0-9a-fA-F]+) - Init "
)


def _warning(about: str, mark: str, pattern: str, example: str, source: str) -> MessageRow:
    return MessageRow(
        makes=TransportWarning,
        fixed={"about": about},
        mark=mark,
        pattern=r"NCCL WARN .*?" + pattern,
        example=f"node7:4711:4790 [3] {example}",
        source=source,
    )


ROWS = (
    _warning(
        "mismatch", "mismatch error", r"(?:peer (?P<peer>[\w.:]+?)<\d+> )?collective mismatch error",
        "transport/net_ib.cc:1038 NCCL WARN NET/IB : req 0/1 tag 0 peer 10.0.0.6<58683> collective mismatch error, local size 496640 remote size 65536",
        NET_IB,
    ),
    _warning("cuda", "Cuda failure", r"Cuda failure (?:\d+ )?'[^']*'", "transport/net.cc:1095 NCCL WARN Cuda failure 'out of memory'", "NVIDIA/nccl src/include/checks.h"),
    _warning(
        "network", "NET/IB", r"NET/IB ?: Got completion from peer (?P<peer>\S+?)(?:<\d+>)? with (?:error|status=) ?(?P<status>\d+)",
        "transport/net_ib.cc:1295 NCCL WARN NET/IB: Got completion from peer 10.0.0.4<37209> with status=12 opcode=0 len=0 vendor err 129",
        NET_IB,
    ),
    _warning("network", "ibv_", r"Call to ibv_\w+ failed", "misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable", "NVIDIA/nccl src/misc/ibvwrap.cc"),
    _warning("network", "NET/IB", r"NET/IB", "transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_2:1 Got async event : port error", NET_IB),
    _warning(
        "shared memory", "/dev/shm", r"(?:shared memory segment|failed to extend) (?:/dev/shm|\S*shm)",
        "misc/shmutils.cc:132 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-WU88OE (size 9637888), error: No space left on device (28)",
        "NVIDIA/nccl src/misc/shmutils.cc",
    ),
    _warning(
        "duplicate gpu", "Duplicate GPU detected", r"Duplicate GPU detected : rank (?P<rank>\d{1,9}) and rank \d+ both on CUDA device (?P<peer>\w+)",
        "init.cc:835 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000", "NVIDIA/nccl src/init.cc",
    ),
    _warning("version", "Mismatched NCCL version", r"Mismatched NCCL version", "bootstrap.cc:110 NCCL WARN Mismatched NCCL version detected : rank 0 version 22703 rank 3 version 22105", "NVIDIA/nccl src/init.cc"),
    _warning(
        "socket", "ocket", r"(?:Connect to|connect to|connection to|from|peer) (?P<peer>[\w.:\[\]-]+?)<\d+>[^<]*(?:refused|reset|timed out|failed|closed|aborted|No route)",
        "misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.7<41023> failed : Software caused connection abort", SOCKET,
    ),
    _warning("socket", "ocket", r"(?:[sS]ocket|Connection closed)", "proxy.cc:1326 NCCL WARN Socket recv failed while polling for opId=0x7f2c0c0b1a30", SOCKET),
    _warning("socket", "Net : ", r"Net : Connection from|Net : Call to", "misc/socket.cc:49 NCCL WARN Net : Call to recv from 10.0.0.7<41023> failed : Connection reset by peer", SOCKET),
    _warning("memory", "alloc", r"(?i:failed to .*?alloc|alloc\w* failed|out of memory)", "include/alloc.h:178 NCCL WARN Failed to CUDA calloc async 6291456 bytes", "NVIDIA/nccl src/include/alloc.h"),
    _warning("other", "NCCL WARN", r"(?P<text>\S.*)", "bootstrap.cc:77 NCCL WARN Message truncated : received 256 bytes instead of 4", "NVIDIA/nccl src/include/debug.h"),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "mismatch", "type": "DistBackendError"},
        mark="Mismatched collective detected",
        pattern=r"NCCL WARN (?P<text>Mismatched collective detected, please check your collective calls at and around rank \d{1,9}\b.*)",
        example="node7:4711:4790 [3] init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 5.",
        source="NVIDIA/nccl src/init.cc",
        versions="NCCL 2.4",
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "nccl", "type": "DistBackendError"},
        mark="NCCL error in: ",
        pattern=r"NCCL error in: \S+:\d+, (?:unhandled system error|internal error|invalid usage|invalid argument|unhandled cuda error|remote process exited)",
        example="[rank0]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled system "
        "error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
        "[rank0]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
        "[rank0]: Last error:\n"
        "[rank0]: Error while creating shared memory segment /dev/shm/nccl-WU88OE (size 9637888), error: No space left on device (28)",
        source=ERRORS,
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "nccl", "type": "DistBackendError"},
        mark="NCCL error: ",
        pattern=r"(?<!checking for )NCCL error: (?:unhandled system error|internal error|invalid usage|unhandled cuda error|remote process exited)",
        example="terminate called after throwing an instance of 'std::runtime_error'\n  what():  NCCL error: remote process exited or there was a "
        "network error, NCCL version 2.14.3\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        source=ERRORS,
        versions="torch 1.11 to 2.1",
    ),
    *(
        MessageRow(
            makes=CommunicatorStep,
            fixed={"complete": complete},
            mark=f" - Init {word}",
            pattern=INIT + word,
            example="node7:410:452 [0] NCCL INFO ncclCommInitRank comm 0x55d0 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1000 commId "
            f"0xabc1 - Init {word}",
            source="NVIDIA/nccl src/init.cc",
            versions="NCCL 2.16 and later",
        )
        for word, complete in (("START", False), ("COMPLETE", True))
    ),
    MessageRow(
        makes=LostPeer,
        mark="[Service thread] Connection closed by localRank ",
        pattern=r"NCCL INFO \[Service thread\] Connection closed by localRank (?P<peer>\d{1,9})",
        example="node7:301:382 [3] NCCL INFO [Service thread] Connection closed by localRank 3",
        source="NVIDIA/nccl src/proxy.cc",
    ),
    MessageRow(
        makes=HardwareFault,
        fixed={"kind": "nvlink"},
        mark="NVLink",
        pattern=r"(?i)nvlink (?:error|fatal|failure|.*?(?:is down|recoverable error|uncorrectable))",
        example="[Fri Nov 28 10:00:00 2026] nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 42 LTSSM Fault Up: NVLink fatal error",
        source="docs.nvidia.com/deploy/xid-errors",
    ),
)  # fmt: skip
