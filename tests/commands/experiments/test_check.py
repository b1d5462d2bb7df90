"""`nsadiag check`: scripts whose ranks disagree are told without a hang, healthy ones agree, and nothing is left behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from support.jobs import Jobs
from support.promises import script_of

from nsadiag.agent.rehearsal import watch
from nsadiag.commands.experiments.check import check_once
from nsadiag.commands.run import RunRequest

TORCHRUN = (str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2")
EVERY_CALL = """
import torch, torch.distributed as dist
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank, size = dist.get_rank(), dist.get_world_size()
mine = torch.full((2, 2), float(rank + 1))
total = mine.clone(); dist.all_reduce(total); assert total.eq(3).all()
mean = mine.clone(); dist.all_reduce(mean, op=dist.ReduceOp.AVG); assert mean.eq(1.5).all() and mine.eq(rank + 1).all()
mine = torch.full((2,), float(rank + 1))
parts = [torch.zeros(2) for _ in range(size)]; dist.all_gather(parts, mine); assert [p[0].item() for p in parts] == [1, 2]
whole = torch.zeros(4); dist.all_gather_into_tensor(whole, mine); assert whole.tolist() == [1, 1, 2, 2]
piece = torch.zeros(1); dist.reduce_scatter_tensor(piece, torch.arange(2.0) + rank); assert piece.item() == [1, 3][rank]
best = mine.clone(); dist.broadcast(best, src=1); assert best.tolist() == [2, 2]
sent = mine.clone(); dist.reduce(sent, dst=0); assert rank or sent.tolist() == [3, 3]
got = [torch.zeros(2) for _ in range(size)] if rank == 0 else None
dist.gather(mine, got, dst=0); assert rank or [g[0].item() for g in got] == [1, 2]
share = torch.zeros(2); dist.scatter(share, [mine, mine * 4] if rank == 0 else None, src=0); assert share.tolist() == [[1, 1], [4, 4]][rank]
swapped = torch.zeros(2); dist.all_to_all_single(swapped, torch.tensor([10.0, 20.0]) + rank); assert swapped.tolist() == [[10, 11], [20, 21]][rank]
uneven = torch.zeros([3, 1][rank]); dist.all_to_all_single(uneven, torch.arange(2.0) + 10 * rank, [[1, 2], [1, 0]][rank], [[1, 1], [2, 0]][rank])
assert uneven.tolist() == [[0, 10, 11], [1]][rank]
things = [None] * size; dist.all_gather_object(things, {"rank": rank}); assert things == [{"rank": 0}, {"rank": 1}]
if rank == 0: dist.send(mine, dst=1); box = torch.zeros(2); dist.recv(box, src=1); assert box.tolist() == [2, 2]
else: box = torch.zeros(2); assert dist.recv(box) == 0 and box.tolist() == [1, 1]; dist.send(mine, dst=0)
pair = dist.new_group([0, 1]); dist.barrier(group=pair)
work = dist.all_reduce(mine, async_op=True); work.wait(); assert mine.tolist() == [3, 3]
dist.destroy_process_group()
print("all right")
"""


def rehearsed(jobs: Jobs, script: Path, *options: str) -> tuple[int, dict[str, object], dict[str, object]]:
    done = jobs.run("check", "--out", "run", *options, "--json", "--", *TORCHRUN, script)
    run = jobs.directory / "run"
    return (
        done.returncode,
        json.loads((run / "rehearsal.json").read_text()),
        json.loads((run / "verdict.json").read_text()),
    )


def test_values_are_exchanged_as_a_backend_does(jobs: Jobs, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(EVERY_CALL)
    code, rehearsal, _ = rehearsed(jobs, script)
    assert (code, rehearsal["answer"]) == (0, "agreed"), rehearsal


@pytest.mark.parametrize(
    "name",
    [
        "healthy_ddp",
        *(
            pytest.param(n, marks=pytest.mark.slow)
            for n in ("healthy_fsdp2", "healthy_join_uneven", "healthy_join_epochs")
        ),
    ],
)
def test_a_healthy_job_agrees(jobs: Jobs, name: str) -> None:
    code, rehearsal, _ = rehearsed(jobs, script_of(name))
    assert (code, rehearsal["answer"]) == (0, "agreed"), rehearsal


# The calls of the last two are in no recorder of torch's, and in part in none of the ranks' own.
@pytest.mark.parametrize(
    "name",
    [
        "uneven_inputs_shards",
        pytest.param("collective_order_mismatch_background_save", marks=pytest.mark.slow),
        pytest.param("collective_args_mismatch_group_object", marks=pytest.mark.slow),
        pytest.param("collective_order_mismatch_thread_pool", marks=pytest.mark.slow),
    ],
)
def test_calls_that_differ_are_told_with_the_verdict_of_a_run(jobs: Jobs, name: str) -> None:
    script = script_of(name)
    code, rehearsal, verdict = rehearsed(jobs, script)
    assert (code, rehearsal["answer"]) == (1, "differs"), rehearsal
    assert verdict["class"] == script.parent.name
    assert len({call["rank"] for call in rehearsal["calls"]}) == 2  # type: ignore[attr-defined]


def test_the_cause_is_recorded_beside_where_the_rank_stands(jobs: Jobs) -> None:
    script = script_of("data_divergent_patience")
    _, _, verdict = rehearsed(jobs, script, "--seconds", "240")
    because = verdict["because"]
    assert isinstance(because, dict) and isinstance(verdict["stands_at"], dict)
    assert (because["code"], because["how"], because["origin"]) == ("if stopper.stop:", "recorded", "rank")
    assert because["chain"][0]["values"] == [{"name": "stopper.stop", "by_rank": {"0": "True", "1": "False"}}]
    assert because["chain"][-1]["at"]["code"] == "rank = dist.get_rank()"
    assert verdict["stands_at"]["code"].startswith("dist.all_reduce(best")


def test_a_rank_that_raises_is_told(jobs: Jobs, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "assert dist.get_rank() == 0, 'bad shard'\ndist.barrier()\n"
    )
    code, rehearsal, verdict = rehearsed(jobs, script)
    assert (code, rehearsal["answer"], verdict["guilty_ranks"]) == (1, "raised", [1]), rehearsal


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("import a_package_of_nobody", "a_package_of_nobody"),
        pytest.param(
            # The CPU stands in for GPUs, and not for graphs of their kernels.
            "torch.cuda.CUDAGraph()",
            "CUDA",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, as the script asks"),
            ],
        ),
    ],
)
def test_what_is_not_here_is_named_and_nobody_accused(
    jobs: Jobs, tmp_path: Path, line: str, named: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import torch, torch.distributed as dist\ndist.init_process_group('nccl')\n{line}\n")
    code, rehearsal, _ = rehearsed(jobs, script)
    assert (code, rehearsal["answer"]) == (2, "can't")
    assert named in str(rehearsal["why"]) and str(rehearsal["why"]).endswith("train.py:3")


@pytest.mark.slow
def test_an_endless_job_is_undecided(jobs: Jobs, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "while True: dist.all_reduce(torch.ones(1))\n"
    )
    code, rehearsal, _ = rehearsed(jobs, script, "--seconds", "15")
    assert (code, rehearsal["answer"]) == (3, "undecided"), rehearsal
    assert rehearsal["matched"]


def test_a_loop_that_a_rank_does_not_leave_is_named_with_what_keeps_it_in(jobs: Jobs, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "def climb(low):\n    while low > 3:\n        low += 1\n"
        "for step in range(5):\n    dist.all_reduce(torch.ones(1))\n"
        "    if dist.get_rank() == 1 and step == 3: climb(5)\n"
    )
    code, rehearsal, verdict = rehearsed(jobs, script, "--seconds", "12")
    assert (code, rehearsal["answer"]) == (3, "undecided"), rehearsal
    assert (verdict["mechanism"], verdict["class"]) == ("endless_loop", "livelock_user_code")
    assert verdict["certainty"] == "suspected" and verdict["guilty_ranks"] == [1]
    assert "`while low > 3`" in verdict["summary"]


def test_a_loop_whose_state_comes_back_is_proven_to_have_no_end(jobs: Jobs, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "def drain(queue, done):\n    while queue:\n        first = queue.pop(0)\n"
        "        if first in done:\n            continue\n        queue.append(first)\n"
        "for step in range(5):\n    dist.all_reduce(torch.ones(1))\n"
        "    if dist.get_rank() == 1 and step == 3: drain(['a', 'b'], [])\n"
    )
    code, rehearsal, verdict = rehearsed(jobs, script)
    assert (code, rehearsal["answer"]) == (1, "differs"), rehearsal
    assert verdict["class"] == "livelock_user_code" and verdict["certainty"] == "proven"
    assert verdict["guilty_ranks"] == [1] and "`while queue`" in verdict["summary"]
    assert verdict["where"]["line"] == verdict["because"]["line"] == 4


def test_sleep_takes_no_time(jobs: Jobs, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import time, torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "began = time.monotonic()\nif dist.get_rank() == 0: time.sleep(3000)\n"
        "dist.barrier()\nassert time.monotonic() - began > 2999\n"
    )
    code, rehearsal, _ = rehearsed(jobs, script)
    assert (code, rehearsal["answer"]) == (0, "agreed"), rehearsal


LATE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for n in range(10**9 if dist.get_rank() == 2 else 0):  # its calls would say who is unlike the rest
    torch.full((64, 64), float(n)).mm(torch.ones(64, 64)).sum().item()
dist.all_reduce(torch.ones(4 + dist.get_rank()))
"""


@pytest.mark.slow
def test_calls_that_differ_are_told_when_the_time_is_up_before_all_ranks_have_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "GATHER_S", 1000.0)
    (tmp_path / "late.py").write_text(LATE)
    command = [TORCHRUN[0], "--nproc-per-node", "3", str(tmp_path / "late.py")]
    found = check_once(RunRequest(command=command, timeout_s=25, out=tmp_path / "run")).rehearsal
    assert (found.answer, {call.rank for call in found.calls}) == ("differs", {0, 1})


TURN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
parts = [torch.ones(n) for n in (2, 3, 5)]
def kept(step):
    return [1.0, 0.0 if step == 4 and dist.get_rank() else 1.0, 1.0]
for step in range(6):
    for part, value in zip(parts, kept(step)):
        if value == 0:
            continue
        dist.all_reduce(part)
"""


@pytest.mark.slow
def test_a_turn_that_no_stack_shows_names_the_class(jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "turn.py").write_text(TURN)
    _, rehearsal, verdict = rehearsed(jobs, tmp_path / "turn.py", "--seconds", "240")
    assert {call["place"].split(":")[1] for call in rehearsal["calls"]} == {"11"}
    assert (verdict["class"], verdict["because"]["line"]) == ("data_divergent_control_flow", 9)
