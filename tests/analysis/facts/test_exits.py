"""Connections that are lost: to a peer, which is why a rank fails, or to somebody who is none."""

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from support.jobs import Jobs

from nsadiag.analysis.facts.exits import first_break
from nsadiag.analysis.load import load_cell
from nsadiag.evidence.layout import RunDir, make_private_dir, write_json

ASKS = """
    import urllib.request
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 1))
    for step in range(6):
        model(torch.ones(2, 4)).sum().backward()
        if dist.get_rank() == 1 and step == 4:
            urllib.request.urlopen("http://127.0.0.1:9/features", timeout=5)  # nobody listens at "discard"
    dist.barrier()
"""


@pytest.mark.slow
def test_a_server_that_refuses_is_no_peer(jobs: Jobs) -> None:
    (jobs.directory / "train.py").write_text(dedent(ASKS))
    jobs.run("run", "--out", "run", "--", "torchrun", "--standalone", "--nproc-per-node", "2", "train.py")
    verdict = json.loads((jobs.directory / "run" / "verdict.json").read_text())
    assert (verdict["class"], verdict["guilty_ranks"]) == ("rank_exception", [1]), verdict["summary"]
    assert "urlopen" in verdict["where"]["code"]


USERS, HTTP = "/home/u/train.py", "/usr/lib/python3.11/http/client.py"
TORCH = "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py"
PROBE = "/usr/lib/python3/site-packages/nsadiag/worker/probes/collectives.py"
QUEUE = "/usr/lib/python3.11/multiprocessing/connection.py"


@pytest.mark.parametrize(
    ("kind", "files", "peer", "expected"),
    [
        ("URLError", [USERS, HTTP], None, 0),
        ("ConnectionResetError", [USERS], None, 0),
        # gloo's, raised at the user's line or in torch's own; a process of the rank's own has gone.
        ("RuntimeError", [USERS], None, None),
        ("DistNetworkError", [USERS, TORCH], None, None),
        ("RuntimeError", [USERS, PROBE], None, None),
        ("ConnectionResetError", [USERS, QUEUE], None, None),
        # A peer was killed at that moment: ends are seen a little later than exceptions.
        ("ConnectionResetError", [USERS, HTTP], {"signal": 9, "t_s": 10.3}, 1),
        ("ConnectionResetError", [USERS, HTTP], {"signal": 9, "t_s": 12.0}, 0),
    ],
)
def test_who_broke_first(
    kind: str, files: list[str], peer: dict[str, Any] | None, expected: int | None, tmp_path: Path
) -> None:
    run, started = RunDir(path=tmp_path), 1_000_000_000
    ends: dict[str, Any] = {"0": {"t_s": 10.1, "exit_code": 1}}
    ends["1"] = peer or {"t_s": 11.0, "signal": 15}
    for rank in (0, 1):
        make_private_dir(run.rank(rank).path)
        write_json(run.rank(rank).meta, {"rank": rank, "world_size": 2, "pid": 100 + rank})
    frames = [{"file": file, "line": 3, "function": "f", "code": ""} for file in files]
    raised = {"type": kind, "message": "Connection reset by peer", "thread": "MainThread", "frames": frames}
    write_json(run.rank(0).exception, {**raised, "t_mono_ns": started + 10 * 10**9})
    write_json(run.ends, ends)
    write_json(run.watch, {"started_mono_ns": started, "ended_s": 13.0})
    found = first_break(load_cell(tmp_path))
    assert (found.rank.rank if found else None) == expected
