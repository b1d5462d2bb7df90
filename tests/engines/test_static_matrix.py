"""`nsadiag matrix --nnodes 2` on loopback: cells of one directory that both nodes share, and a cell that one node has alone."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest
from support.jobs import GIVE_UP_S, Jobs, wait_until

from nsadiag.cluster.place import free_port
from nsadiag.commands.batch.submission import lost
from nsadiag.commands.matrix.cells import directory_of, restored
from nsadiag.evidence.layout import RunDir, write_json
from nsadiag.spec import load_matrix

JOB = """
import os, sys, time
import torch
import torch.distributed as dist

def stand_still():
    time.sleep(3600)

dist.init_process_group("gloo")
for step in range(4):
    if sys.argv[1] == "hung" and step == 2 and dist.get_rank() == 1:
        stand_still()
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
"""
SPEC = """
name: two
command: job.py
world_size: 2
axes:
  what: {values: [ok, hung], args: "{value}"}
  ranks:
    values:
      one: {world_size: 1}
      two: {world_size: 2}
exclude: [{what: hung, ranks: one}]
"""
TOKEN = {"NSADIAG_RUN_TOKEN": "the token of these tests"}


@pytest.fixture
def matrix(jobs: Jobs) -> Path:
    (jobs.directory / "job.py").write_text(JOB)
    (jobs.directory / "m.yaml").write_text(SPEC)
    return jobs.directory


def started(jobs: Jobs, rank: int, port: int, *more: str) -> subprocess.Popen[str]:
    at = ("--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--master-port", str(port))
    return jobs.start("matrix", "m.yaml", "--out", "out", "--json", *at, *more, env=TOKEN)


@pytest.mark.slow
def test_cells_run_on_both_nodes_and_the_hung_one_names_rank_and_host(jobs: Jobs, matrix: Path) -> None:
    port = free_port(socket.AF_INET, "127.0.0.1")
    both = [started(jobs, rank, port) for rank in (0, 1)]
    (out0, err0), (out1, err1) = (agent.communicate(timeout=150) for agent in both)
    assert jobs.left() == {}
    assert [agent.returncode for agent in both] == [1, 1], err0 + err1
    cells = {cell["id"]: cell for cell in json.loads((matrix / "out/matrix.json").read_text())["cells"]}
    found = {
        name: (cell["verdict"]["outcome"], cell["verdict"]["guilty_ranks"]) for name, cell in cells.items()
    }
    assert found == {
        "what=ok,ranks=one": ("healthy", []),
        "what=ok,ranks=two": ("healthy", []),
        "what=hung,ranks=two": ("hung", [1]),
    }
    where = cells["what=hung,ranks=two"]["verdict"]["where"]
    assert (where["function"], where["host"][-6:]) == ("stand_still", "-node1")
    # A shared directory: nothing travels, and each rank says where it was.
    ranks = [
        json.loads(r.meta.read_text()) for r in RunDir(path=matrix / "out/cells/what=ok,ranks=two").ranks()
    ]
    assert [meta["host"][-6:] for meta in ranks] == ["-node0", "-node1"]
    assert json.loads(out1)["shared"] is True
    assert json.loads(out0)["cells"]


@pytest.mark.slow
def test_an_interrupt_on_one_node_ends_the_matrix_on_both(jobs: Jobs, matrix: Path) -> None:
    port = free_port(socket.AF_INET, "127.0.0.1")
    first, second = (started(jobs, rank, port, "-k", "hung") for rank in (0, 1))
    rank_1 = matrix / "out/cells/what=hung,ranks=two/ranks/00001/meta.json"
    wait_until(rank_1.exists, "rank 1")
    second.terminate()
    (_, err0), (_, err1) = first.communicate(timeout=GIVE_UP_S), second.communicate(timeout=GIVE_UP_S)
    assert jobs.left() == {}
    assert [first.returncode, second.returncode] == [130, 130], err0 + err1


def test_a_cell_in_which_a_node_was_lost_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(SPEC)
    run = RunDir(path=tmp_path / "out")
    for cell, lost_s in zip(
        load_matrix(tmp_path / "m.yaml").cells(None, None, None)[:2], (None, 7.0), strict=True
    ):
        directory = directory_of(run, cell)
        directory.path.mkdir(parents=True)
        directory.watch.write_text(json.dumps({"nodes": [{"name": "hostb", "lost_s": lost_s}]}))
        write_json(directory.verdict, lost("1", cell, [], run, "static").to_json())
        write_json(directory.cell, {"wall_s": 3.0})
        assert restored(run, cell).state == ("done" if lost_s is None else "pending")
        assert directory.path.exists() is (lost_s is None)
