"""The table of messages: each row's example is read, wherever it stands, and says what the row promises."""

from __future__ import annotations

import pytest

from nsadiag.analysis.ingest.logs import numbered, read_log
from nsadiag.analysis.ingest.messages.rows.row import MessageRow
from nsadiag.analysis.ingest.messages.table import FAMILIES, ROWS
from nsadiag.evidence.messages import (
    ClosedProcess,
    CommunicatorStep,
    HardwareFault,
    LostPeer,
    PortTaken,
    ProcessEnd,
    RankDisagreement,
    Rendezvous,
    Setting,
    Standing,
    StoreWait,
    StuckWatchdog,
    ToolAnswer,
    TransportWarning,
    Version,
    WorldSize,
)

# Some that pass unnoticed, before and behind.
QUIET = "step 3 loss 2.31\nsaved checkpoint 12\n"


def name_of(row: MessageRow) -> str:
    return f"{row.makes.__name__}: {row.mark.strip()}"


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_a_rows_example_is_read(row: MessageRow) -> None:
    found = read_log(numbered(f"{QUIET}{row.example}\n{QUIET}")).of(row.makes)
    assert any(row.fixed.items() <= vars(fact).items() for fact in found), row.example
    marked = next(n for n, line in enumerate(row.example.splitlines(), 3) if row.mark in line)
    assert marked in [fact.line for fact in found]


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_a_row_says_who_prints_it(row: MessageRow) -> None:
    assert "/" in row.source or len(row.source.split()) > 2


@pytest.mark.parametrize(
    "before", ["2026-11-28T10:00:00.1Z stderr F ", "[pod/train-0/pytorch] ", "trainer-1  | ", "\x1b[31m"]
)
def test_an_example_behind_a_containers_stamp_says_the_same(before: str) -> None:
    missed = [
        name_of(row)
        for row in ROWS
        if not read_log(numbered("".join(f"{before}{line}\n" for line in row.example.splitlines()))).of(
            row.makes
        )
    ]
    assert missed == []


def test_no_row_is_there_twice() -> None:
    assert len({(row.makes, row.pattern) for row in ROWS}) == len(ROWS) == sum(map(len, FAMILIES.values()))


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("[rank5]:[F1128 10:00:00.1 x.cpp:1] [PG 0 Rank 5] ProcessGroupNCCL's watchdog got stuck for 480 seconds without", StuckWatchdog(line=1, rank=5, seconds=480.0)),
        (
            "[rank4]:[E8 03:04:11 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 4] Received a dump signal due to a collective timeout from  rank 1 "
            "and we will try our best to dump the debug info. Last enqueued NCCL work: 77, last completed NCCL work: 76.",
            Standing(line=1, rank=4, group="0", enqueued=77, completed=76, first_by=1),
        ),
        ("node7:4711:4790 [3] transport/net_ib.cc:1 NCCL WARN NET/IB: Got completion from peer 10.0.0.4<37209> with status=12 opcode=0", TransportWarning(line=1, pid=4711, host="node7", about="network", device=3, peer="10.0.0.4", status=12)),
        ("[12.5000] NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.", HardwareFault(line=1, kind="xid", number=79, device="0000:3b:00", pid=4711)),
        ("[rank2]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:41023", LostPeer(line=1, rank=2, peer="10.0.0.7", port=41023)),
        ("[rank2]: RuntimeError: [x.cc:1] Timed out waiting 1800000ms for recv operation to complete", LostPeer(line=1, rank=2, seconds=1800.0)),
        ("[rank1]: DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//0", StoreWait(line=1, rank=1, key="/default_pg/0//cuda//0", seconds=300.0)),
        ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 31/32 clients joined.", Rendezvous(line=1, joined=31, expected=32, seconds=601.0)),
        ("The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use", PortTaken(line=1, port=29500)),
        ("[rank6]: RuntimeError: disagreement between rank0 and rank6: rank0: [2, 3], rank6: [2, 7]", RankDisagreement(line=1, rank=6, unlike=6, here="[2, 7]", at_rank_0="[2, 3]")),
        ("(raylet) 3 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node", ProcessEnd(line=1, by="ray", why="memory", count=3)),
        ("srun: error: node7: task 9: Out Of Memory", ProcessEnd(line=1, by="slurm", why="memory", rank=9, host="node7")),
        (
            "srun: error: node7: tasks 8-10,14: Killed",
            ProcessEnd(line=1, by="slurm", ranks=(8, 9, 10, 14), host="node7", signal="Killed"),
        ),
        ("srun: error: node7: task 3: Exited with exit code 41", ProcessEnd(line=1, by="slurm", rank=3, host="node7", code=41)),
        ("slurmstepd: error: *** JOB 8812 ON node7 CANCELLED AT 2026-11-28T10:00:00 DUE TO TIME LIMIT ***", ProcessEnd(line=1, by="slurm", why="time limit", host="node7", name="8812", time="2026-11-28T10:00:00")),
        ("Sending process 8812 closing signal SIGTERM", ClosedProcess(line=1, pid=8812, signal="SIGTERM")),
        ("node7:410:452 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 2 nranks 4 cudaDev 2 busId 1 commId 0xab - Init COMPLETE", CommunicatorStep(line=1, rank=2, pid=410, host="node7", communicator="0xab", size=4, member=2, complete=True)),
        ("INFO:train:World size: 16", WorldSize(line=1, size=16)),
        ("PyTorch version: 2.6.0+cu124", Version(line=1, of="torch", version="2.6.0+cu124")),
        ("export NCCL_P2P_DISABLE=1", Setting(line=1, name="NCCL_P2P_DISABLE", value="1")),
        ("missing ranks: {3, 5}", ToolAnswer(line=1, tool="torchfrtrace", kind="missing", ranks=(3, 5))),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)  # fmt: skip
def test_a_messages_numbers_are_values(line: str, fact: object) -> None:
    found = read_log(numbered(line)).of(type(fact))  # type: ignore[type-var]
    told = {**vars(found[0]), "text": ""}
    assert {**told, "time": vars(fact)["time"] and told["time"]} == vars(fact)


@pytest.mark.parametrize(
    "line",
    [
        "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "You can set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 to see more",
    ],
)
def test_advice_to_set_a_variable_is_not_a_setting(line: str) -> None:
    assert read_log(numbered(line)).of(Setting) == []


def test_ncclras_names_the_ranks_below_a_heading() -> None:
    text = """
Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 4711 on node 10.0.0.7 managing GPU 3

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 3 -- GPU 3 managed by process 4711 on node 10.0.0.7

Warnings
========

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different collective operation counts
  7 ranks have launched up to operation 6650
  1 rank has launched up to operation 6649
  Rank 5 -- GPU 5 managed by process 4713 on node 10.0.0.7
"""
    found = read_log(numbered(text)).of(ToolAnswer)
    assert [(each.kind, each.ranks, each.pid, each.number) for each in found] == [
        ("dead", (), 4711, None),
        ("missing", (3,), 4711, None),
        ("operations", (5,), 4713, 6649),
    ]
