"""`nsadiag run --nnodes 2`: two agents, one job, one verdict; here on loopback, with a directory of its own for each."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.jobs import GIVE_UP_S, Jobs

from nsadiag.agent.stillness.device_queue import held_up, queue_of
from nsadiag.agent.stillness.motion import Motion, Stance
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.verdict import judge_directory
from nsadiag.cluster.merge import Story, merge
from nsadiag.cluster.place import Place, free_port
from nsadiag.cluster.protocol.clock import Offset
from nsadiag.cluster.protocol.notes import (
    Looked,
    Order,
    State,
    looked_document,
    looked_of,
    order_of,
    state_of,
    to_document,
)
from nsadiag.commands.nodes import check_line, completed, line_of
from nsadiag.engines.static import spread
from nsadiag.errors import UsageError
from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.ring.blackbox import BlackBox, Kind, Phase
from nsadiag.evidence.ring.reader import read_blackbox

PLACE = Place(nnodes=2, node_rank=1, master_addr="hosta", token="t" * 20)
JOB = """
import sys, time
import torch
import torch.distributed as dist

def evaluate():
    time.sleep(3600)

dist.init_process_group("gloo")
for step in range(6):
    if step == 4 and dist.get_rank() == 2:
        evaluate()
    dist.all_reduce(torch.ones(4))
"""


# -- the line ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "torchrun --nproc-per-node 2 train.py --nnodes 9",
            "torchrun --nnodes 2 --node-rank 1 --master-addr hosta --master-port 7 --nproc-per-node 2 train.py --nnodes 9",
        ),
        (
            "python -m torch.distributed.run --nproc_per_node=2 -m train",
            "python -m torch.distributed.run --nnodes 2 --node-rank 1 --master-addr hosta --master-port 7"
            " --nproc_per_node=2 -m train",
        ),
        ("torchrun --nnodes=2 --node_rank=1 train.py", "torchrun --nnodes=2 --node_rank=1 train.py"),
        ("torchrun --rdzv-endpoint hosta:29400 t.py", "torchrun --rdzv-endpoint hosta:29400 t.py"),
        ("accelerate launch train.py", "accelerate launch train.py"),
    ],
)
def test_torchrun_is_told_of_the_nodes_where_its_line_does_not_say(line: str, expected: str) -> None:
    assert completed(line_of(line.split()), PLACE, "hosta:7") == expected.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("torchrun --standalone train.py", "--standalone makes a job of each node"),
        ("torchrun --nnodes 3 train.py", "torchrun is given --nnodes 3, and nsadiag --nnodes 2"),
        (
            "torchrun --nnodes 2 --node_rank=0 t.py",
            "torchrun is given --node-rank 0, and nsadiag --node-rank 1",
        ),
    ],
)
def test_a_line_that_contradicts_us_is_refused(line: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_line(line_of(line.split()), PLACE)


def test_ranks_are_spread_evenly() -> None:
    assert [spread(n, 2) for n in (4, 3, 1)] == [(2, 2), (2, 1), (1, 0)]


# -- what watches tell each other ---------------------------------------------------------------------


def test_notes_survive_the_way() -> None:
    state = State(cell=3, number=7, ranks=(2, 3), alive=2, stirred_ago_s=0.5)
    assert state_of(json.loads(json.dumps(to_document(state)))) == state
    order = Order(cell=3, look=5, waiting=(0, 1), stop="hang")
    assert order_of(json.loads(json.dumps(to_document(order)))) == order
    motion = Motion(rank=2, seconds=2.0, cpu_share=0.1, frames_changed=True, io_bytes=3, events=0, collectives=0, waits_for_peers=False)  # fmt: skip
    looked = Looked(
        cell=3,
        first=5,
        stances=[Stance(rank=2, motion=motion, queue={"entries": []}, inside=None)],
        worked={2: (1.5, "used 0.3 CPUs")},
    )
    assert looked_of(json.loads(json.dumps(looked_document(looked)))) == looked


@pytest.mark.parametrize(
    "document", [None, {}, {"cell": []}, {"cell": 1, "ranks": 5}, {"cell": 1, "stances": [{}]}]
)
def test_what_is_no_note_is_none(document: dict[str, Any] | None) -> None:
    assert looked_of(document) is None
    assert state_of(document) is None or "cell" in (document or {})


def test_whether_a_rank_waits_for_peers_is_seen_from_what_is_pending_alone() -> None:
    def dump(count: int, state: str) -> dict[str, Any]:
        entries = [
            {"process_group": ["0", "default"], "collective_seq_id": n, "profiling_name": "gloo:all_reduce",
             "input_sizes": [[4]], "input_dtypes": ["Float"], "state": "completed" if n < count else state,
             "retired": n < count, "frames": ["x"] * 100}
            for n in range(1, count + 1)
        ]  # fmt: skip
        return {
            "entries": entries,
            "pg_config": {"0": {"ranks": "[0, 1]", "desc": "x"}, "1": {"ranks": "[0]"}},
        }

    whole = {0: dump(5, "scheduled"), 1: dump(4, "completed")}
    small = {rank: queue_of(each) for rank, each in whole.items()}
    assert list(small[0]["pg_config"]) == ["0"]
    assert "frames" not in small[0]["entries"][0]
    assert held_up(small, {0, 1}) == held_up(whole, {0, 1}) == {0}


# -- putting it together ------------------------------------------------------------------------------


def recorded(run: RunDir, rank: int, host: str) -> int:
    """A rank with one event, and when that was by its host's clock."""
    directory = run.rank(rank)
    directory.path.mkdir(parents=True)
    box = BlackBox(directory.blackbox, rank=rank, world_size=2)
    box.emit(Kind.STEP, Phase.POINT, 0)
    t_ns = int(read_blackbox(directory.blackbox).events["t_ns"][0])
    directory.meta.write_text(json.dumps({"rank": rank, "world_size": 2, "host": host, "pid": 5}))
    directory.exception.write_text(
        json.dumps({"type": "E", "message": "", "thread": "MainThread", "t_mono_ns": t_ns, "frames": []})
    )
    return t_ns


def test_clocks_five_seconds_apart_do_not_change_the_order_of_events(tmp_path: Path) -> None:
    run, second = RunDir(path=tmp_path), 1_000_000_000
    seen = [recorded(run, 0, "hosta"), recorded(run, 1, "hostb")]
    # hostb's clock is 5 s behind, and its part began 2 s after node 0's.
    for host, began in (("hosta", 100), ("hostb", 97)):
        run.node(host).mkdir(parents=True)
        about = {"started_mono_ns": began * second, "launcher_exit_code": 0}
        (run.node(host) / "watch.json").write_text(json.dumps(about))
    (run.node("hosta") / "ends.json").write_text(json.dumps({"0": {"pid": 5, "t_s": 10.5}}))
    (run.node("hostb") / "ends.json").write_text(json.dumps({"1": {"pid": 5, "t_s": 8.5}}))
    offset = Offset(mono_offset_ns=5 * second, wall_offset_ns=0, rtt_ns=1000)
    merge(run, "hosta", [Story(node_rank=1, name="hostb", directory="/x", shared=False, offset=offset)])
    ranks = load_cell(tmp_path).ranks
    expected = [seen[0], seen[1] + 5 * second]
    assert [int(rank.recording.events["t_ns"][0]) for rank in ranks] == expected
    assert [rank.exception and rank.exception.t_mono_ns for rank in ranks] == expected
    assert [rank.end.t_s for rank in ranks] == [10.5, 10.5]


def test_what_a_lost_node_had_is_a_gap_that_names_it(tmp_path: Path) -> None:
    run = RunDir(path=tmp_path)
    run.node("hosta").mkdir(parents=True)
    (run.node("hosta") / "watch.json").write_text("{}")
    story = Story(node_rank=1, name="hostb", directory="/scratch/run", shared=False, lost_s=12.0)
    merge(run, "hosta", [story])
    gaps = load_cell(tmp_path).gaps
    assert "hostb: node 1 stopped responding 12 s into the job: its agent died, or the network to it" in gaps
    assert "hostb: how its ranks ended did not come; what there is lies in /scratch/run there" in gaps


def test_a_node_on_which_no_rank_appeared_is_a_gap(tmp_path: Path) -> None:
    run = RunDir(path=tmp_path)
    for host in ("hosta", "hostb"):
        run.node(host).mkdir(parents=True)
        (run.node(host) / "watch.json").write_text('{"launcher_exit_code": 0}')
    merge(run, "hosta", [Story(node_rank=1, name="hostb", directory="/x", shared=True)])
    told = "hostb: no rank of the job appeared there: does its launcher know the other nodes?"
    assert told in load_cell(tmp_path).gaps


def test_ranks_that_lost_their_peers_with_a_host_are_told_from_those_that_failed(tmp_path: Path) -> None:
    run = RunDir(path=tmp_path)
    recorded(run, 0, "hosta")
    closed = {"type": "RuntimeError", "message": "Connection closed by peer [10.0.0.2]:1", "frames": []}
    closed["thread"] = "MainThread"
    run.rank(0).exception.write_text(json.dumps(closed | {"t_mono_ns": 15_000_000_000}))
    run.node("hosta").mkdir(parents=True)
    about = {"started_mono_ns": 0, "launcher_exit_code": 1, "looks": []}
    (run.node("hosta") / "watch.json").write_text(json.dumps(about))
    end = {"pid": 5, "t_s": 15.1, "exit_code": 1, "signal": None, "by_us": False, "clean": True, "steps": 3}
    (run.node("hosta") / "ends.json").write_text(json.dumps({"0": end}))
    story = Story(node_rank=1, name="hostb", directory="/x", shared=False, lost_s=14.0, ranks=(1,))
    merge(run, "hosta", [story])
    verdict = judge_directory(tmp_path)
    assert (verdict.outcome, verdict.cls, verdict.guilty_ranks) == ("crashed", "rank_killed", (1,))
    assert "Host hostb stopped responding 14 s into the job" in verdict.summary
    assert verdict.where is not None
    assert verdict.where.host == "hostb"


def test_a_source_that_differs_between_nodes_is_told(tmp_path: Path) -> None:
    run = RunDir(path=tmp_path)
    for folder, text in ((run.sources, "a = 1\n"), (run.node("hostb") / "sources", "a = 2\n")):
        folder.mkdir(parents=True)
        (folder / "00-train.py").write_text(text)
        (folder / "index.json").write_text('{"/job/train.py": "00-train.py"}')
    merge(run, "hosta", [Story(node_rank=1, name="hostb", directory="/x", shared=False)])
    assert "hostb: /job/train.py is not the same there as on node 0" in load_cell(tmp_path).gaps


# -- the real thing -----------------------------------------------------------------------------------


def started(
    jobs: Jobs, rank: int, port: int, out: str, *line: str, behind: Sequence[str] = ()
) -> subprocess.Popen[str]:
    at = ("--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--master-port", str(port))
    env = {"NSADIAG_RUN_TOKEN": "the token of these tests"}
    return jobs.start("run", "--out", out, "--json", *at, "--", *line, env=env, behind=behind)


@pytest.mark.slow
def test_nodes_that_run_a_job_each_are_told_so(jobs: Jobs) -> None:
    (jobs.directory / "job.py").write_text(JOB + "time.sleep(60)\n")
    port, own = free_port(socket.AF_INET, "127.0.0.1"), [free_port(socket.AF_INET, "127.0.0.1") for _ in "ab"]
    both = [
        started(jobs, rank, port, f"run{rank}", "torchrun", "--master-port", str(own[rank]), "--nproc-per-node", "1", "job.py")
        for rank in (0, 1)
    ]  # fmt: skip
    said = [agent.communicate(timeout=GIVE_UP_S)[1] for agent in both]
    assert jobs.left() == {}
    for agent, err in zip(both, said, strict=True):
        assert agent.returncode == 2, err
        assert "error: rank 0 has appeared on two nodes: each runs a job of its own" in err


def test_a_hang_on_the_second_node_is_judged_by_the_evidence_of_both(jobs: Jobs) -> None:
    (jobs.directory / "job.py").write_text(JOB)
    port = free_port(socket.AF_INET, "127.0.0.1")
    line = ("torchrun", "--nproc-per-node", "2", "job.py")
    both = [started(jobs, rank, port, f"run{rank}", *line) for rank in (0, 1)]
    (_, err0), (out1, err1) = (agent.communicate(timeout=GIVE_UP_S) for agent in both)
    assert jobs.left() == {}
    assert [agent.returncode for agent in both] == [1, 1], err0 + err1
    verdict = json.loads((jobs.directory / "run0/verdict.json").read_text())
    assert (verdict["outcome"], verdict["guilty_ranks"], verdict["blocked_ranks"]) == ("hung", [2], [0, 1, 3])
    assert (verdict["where"]["line"], verdict["where"]["function"]) == (7, "evaluate")
    # Both are on one machine here, so that its name alone would not do.
    assert verdict["where"]["host"].endswith("-node1")
    assert verdict["where"]["host"] in verdict["summary"]
    # What the second node saw has travelled, and nothing of the way is left.
    # On a busy machine a first look may have come while the ranks were starting.
    last = json.loads((jobs.directory / "run0/watch.json").read_text())["looks"][-1]
    look = (f"captures/{last['first']:02d}/py_spy.json", f"captures/{last['second']:02d}/fr.json")
    for path in ("blackbox.bin", *look, "meta.json"):
        first, second = (jobs.directory / f"run{n}/ranks/00002/{path}" for n in (0, 1))
        assert first.read_bytes() == second.read_bytes()
    assert not [p.name for p in (jobs.directory / "run0").iterdir() if p.name.startswith(".")]
    ends = json.loads((jobs.directory / "run0/ends.json").read_text())
    assert {rank: (end["signal"], end["by_us"]) for rank, end in ends.items()} == {
        str(n): (15, True) for n in range(4)
    }
    assert json.loads(out1)["summary"].startswith("hung: ")
    assert "the token of these tests" not in "".join(
        p.read_text(errors="replace") for p in jobs.directory.glob("run*/run.json")
    )


TWO_ARE_MANY = """
import sys
from nsadiag.analysis.scale.digests import chosen, representatives
chosen.FEW_RANKS = representatives.FEW_RANKS = 2
sys.argv = sys.argv[1:]
from nsadiag.cli import main
main()
"""


@pytest.mark.slow
def test_of_many_ranks_the_evidence_of_those_that_matter_travels(jobs: Jobs) -> None:
    (jobs.directory / "job.py").write_text(JOB.replace("get_rank() == 2", "get_rank() == 1"))
    (jobs.directory / "two_are_many.py").write_text(TWO_ARE_MANY)
    port = free_port(socket.AF_INET, "127.0.0.1")
    behind = (sys.executable, str(jobs.directory / "two_are_many.py"))
    both = [
        started(
            jobs, node, port, f"run{node}", "torchrun", "--nproc-per-node", ranks, "job.py", behind=behind
        )
        for node, ranks in enumerate("23")
    ]
    (_, err0), (_, err1) = (agent.communicate(timeout=GIVE_UP_S) for agent in both)
    assert jobs.left() == {}
    assert [agent.returncode for agent in both] == [1, 1], err0 + err1
    verdict = json.loads((jobs.directory / "run0/verdict.json").read_text())
    assert (verdict["outcome"], verdict["guilty_ranks"]) == ("hung", [1])
    assert verdict["blocked_ranks"] == [0, 2, 3, 4]
    assert verdict["where"]["line"] == 7
    nodes = jobs.directory / "run0/nodes"
    assert len(list(nodes.glob("*/digest-*.json.gz"))) == 2
    # Of the ranks of the second node, all of which only wait, some stand for their like: one more if rank 0, which
    # may see connections close before its own node ends it, is not of them.
    here = [rank for rank in (2, 3, 4) if (jobs.directory / f"run0/ranks/0000{rank}").exists()]
    assert len(here) in (1, 2)
    assert [gap for gap in verdict["gaps"] if "left no evidence" in gap] == []
