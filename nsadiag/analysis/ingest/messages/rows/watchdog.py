"""torch's process group of NCCL: its watchdog, its heartbeat monitor, and what ends a rank there."""

from nsadiag.analysis.ingest.messages.rows.row import MessageRow
from nsadiag.evidence.messages import Standing, StatedError, StuckWatchdog, TakenDown

NCCL_CPP = "pytorch/pytorch torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"
GROUP = r"\[PG (?:ID )?(?P<group>[^\s\]]+)(?: PG GUID [^\s(\]]+)? ?(?:\([^)]*\))? ?Rank (?P<rank>\d{1,9})\]"

ROWS = (
    MessageRow(
        makes=StatedError,
        fixed={"topic": "cuda", "type": "RuntimeError"},
        mark="watchdog thread terminated with exception: ",
        # A timeout has a line of its own.
        pattern=r"rocess group watchdog thread terminated with exception: (?P<text>(?!\[Rank |.*(?i:timeout)).+)",
        example="[rank1]:[E1128 10:00:00.1 ProcessGroupNCCL.cpp:1897] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group "
        "watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered",
        source=NCCL_CPP,
        versions="torch 2.1 and later",
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "nccl", "type": "DistBackendError"},
        mark="NCCL watchdog thread terminated with exception: ",
        pattern=r"NCCL watchdog thread terminated with exception: (?P<text>(?!\[Rank |.*(?i:timeout)).+)",
        example="[E ProcessGroupNCCL.cpp:915] [Rank 2] NCCL watchdog thread terminated with exception: NCCL error: remote "
        "process exited or there was a network error, NCCL version 2.14.3",
        source=NCCL_CPP,
        versions="torch 1.13 to 2.1",
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "nccl", "type": "DistBackendError"},
        mark="found async exception when checking for NCCL errors: ",
        pattern=r"found async exception when checking for NCCL errors: (?P<text>.+)",
        example="[E ProcessGroupNCCL.cpp:456] [Rank 3] found async exception when checking for NCCL errors: NCCL error: "
        "unhandled system error, NCCL version 2.18.1",
        source=NCCL_CPP,
        versions="torch 2.1",
    ),
    *(
        MessageRow(
            makes=TakenDown,
            mark=mark,
            pattern=mark,
            example=f"[rank1]:[E1128 10:00:00.1 ProcessGroupNCCL.cpp:620] {example}",
            source=NCCL_CPP,
        )
        for mark, example in (
            ("Some NCCL operations have failed or timed out", "[Rank 1] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data."),
            ("taking the entire process down", "[Rank 1] To avoid data inconsistency, we are taking the entire process down."),
            ("Watchdog caught collective operation timeout", "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600083 milliseconds before timing out."),
            ("last enqueued", "[PG ID 0 PG GUID 0(default_pg) Rank 1] failure detected by watchdog at work sequence id: 1 PG status: last enqueued work: 1, last completed work: -1"),
        )
    ),
    MessageRow(
        makes=StuckWatchdog,
        mark="watchdog got stuck for ",
        pattern=r"watchdog got stuck for (?P<seconds>\d+) seconds",
        example="[rank5]:[F1128 10:00:00.1 ProcessGroupNCCL.cpp:1169] [PG 0 Rank 5] [PG 0 Rank 5] ProcessGroupNCCL's "
        "watchdog got stuck for 600 seconds without making progress in monitoring enqueued collectives.",
        source=NCCL_CPP,
        versions="torch 2.2 and later",
    ),
    MessageRow(
        makes=StuckWatchdog,
        mark="Heartbeat monitor timed out",
        pattern=r"Heartbeat monitor timed out! Process will be terminated",
        example="[rank1]:[E1128 10:00:00.1 ProcessGroupNCCL.cpp:1316] [PG 0 Rank 1] Heartbeat monitor timed out! Process will "
        "be terminated after dumping debug info. workMetaList_.size()=103",
        source=NCCL_CPP,
        versions="torch 2.2 to 2.5",
    ),
    MessageRow(
        makes=Standing,
        mark="Received a dump signal due to a collective timeout from ",
        pattern=GROUP + r" Received a dump signal due to a collective timeout from +(?:rank (?P<first_by>\d{1,9})|this local rank) .{0,300}?"
        r"Last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)",
        example="[rank4]:[E810 03:04:11.5 ProcessGroupNCCL.cpp:1858] [PG ID 0 PG GUID 0(default_pg) Rank 4] Received a dump "
        "signal due to a collective timeout from  rank 1 and we will try our best to dump the debug info. Last enqueued NCCL "
        "work: 77, last completed NCCL work: 77.This is most likely caused by incorrect usages of collectives",
        source=NCCL_CPP,
        versions="torch 2.4 and later",
        whole=True,
    ),
    MessageRow(
        makes=StatedError,
        fixed={"topic": "nccl", "type": "DistBackendError"},
        mark="NCCL communicator was aborted on rank ",
        pattern=r"NCCL communicator was aborted on rank (?P<rank>\d{1,9})",
        example="[rank7]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank 7. Original reason for "
        "failure was: NCCL timeout",
        source="pytorch/pytorch torch/csrc/distributed/c10d/NCCLUtils.hpp",
    ),
)  # fmt: skip
