"""`nsadiag check` on scripts that were never meant for it: an answer each, and nothing of them is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from support.jobs import Jobs, wait_until

BIN = Path(sys.executable).parent
BEGIN = "import os, sys, torch, torch.distributed as dist\ndist.init_process_group('gloo')\nrank = dist.get_rank()\n"


def line(ranks: int = 2) -> tuple[str, ...]:
    return (str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(ranks))


def checked(
    jobs: Jobs, text: str, *options: str, command: tuple[str, ...] = line()
) -> tuple[int, dict[str, object]]:
    """Exit code and rehearsal of a script."""
    script = jobs.directory / "train.py"
    script.write_text(text)
    done = jobs.run("check", "--out", "run", *options, "--json", "--", *command, script)
    return done.returncode, json.loads((jobs.directory / "run" / "rehearsal.json").read_text())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('data')\np.parse_args()\n",
            "code 2",
            marks=pytest.mark.slow,
        ),
        ("import torch\ntorch.load('shards/0.pt')\n", "a file that is not here: FileNotFoundError"),
        pytest.param("import torch, not_a_package\n", "ModuleNotFoundError", marks=pytest.mark.slow),
        ("import torch, urllib.request\nurllib.request.urlopen('http://203.0.113.1/')\n", "another host"),
        pytest.param(BEGIN + "torch.ones(2**44)\n", "share of this machine's memory", marks=pytest.mark.slow),
    ],
    ids=["arguments", "data", "package", "network", "memory"],
)
def test_what_is_not_here_is_named_with_its_line(jobs: Jobs, text: str, said: str) -> None:
    code, rehearsal = checked(jobs, text)
    assert (code, rehearsal["answer"]) == (2, "can't"), rehearsal
    assert said in str(rehearsal["why"])


def test_a_file_that_one_rank_alone_misses_is_a_fault(jobs: Jobs) -> None:
    code, rehearsal = checked(jobs, BEGIN + "if rank == 1: torch.load('shards/1.pt')\ndist.barrier()\n")
    assert (code, rehearsal["answer"]) == (1, "raised"), rehearsal


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (BEGIN + "if rank == 1: os._exit(0)\ndist.barrier()\n", "differs"),
        (BEGIN + "if os.fork() == 0: os._exit(0)\nos.wait()\ndist.barrier()\n", "agreed"),
        (BEGIN + "os.close(1)\nprint('to nobody')\ndist.barrier()\n", "raised"),
    ],
    ids=["leaves", "forks", "closes its output"],
)
def test_a_script_that_does_as_it_likes_has_an_answer(jobs: Jobs, text: str, answer: str) -> None:
    assert checked(jobs, text)[1]["answer"] == answer


def test_a_script_that_spawns_its_own_ranks_is_rehearsed(jobs: Jobs) -> None:
    text = (
        "import torch, torch.distributed as dist, torch.multiprocessing as mp\n"
        "def main(rank, tries):\n"
        "    dist.init_process_group('gloo', init_method=f'file://{tries}', rank=rank, world_size=2)\n"
        "    dist.all_reduce(torch.ones(1)) if rank else dist.barrier()\n"
        "if __name__ == '__main__': mp.spawn(main, (__file__ + '.meet',), nprocs=2)\n"
    )
    code, rehearsal = checked(jobs, text, command=(sys.executable,))
    assert (code, rehearsal["answer"]) == (1, "differs"), rehearsal


RUNS_ON = BEGIN + "open(os.environ['SIGNALS'], 'w').write('here\\n')\nwhile True: pass\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_no_rank_outlives_the_command(cold_jobs: Jobs, number: signal.Signals) -> None:
    (cold_jobs.directory / "train.py").write_text(RUNS_ON)
    command = cold_jobs.start("check", "--in-place", "--out", "run", "--", *line(4), "train.py")
    for _ in range(4):
        cold_jobs.signals.wait()
    os.kill(command.pid, number)
    command.communicate()
    assert command.returncode == (-9 if number == signal.SIGKILL else 130)
    wait_until(lambda: not cold_jobs.left(), "the ranks gone")


def test_a_reader_that_is_gone_is_no_error(cold_jobs: Jobs) -> None:
    (cold_jobs.directory / "train.py").write_text(BEGIN + "dist.barrier()\n")
    words = ("check", "--out", "run", "--", *line(), "train.py")
    done = cold_jobs.run(*words, behind=("bash", "-c", '"$0" "$@" | true'))
    assert "Traceback" not in done.stderr
    assert (cold_jobs.directory / "run" / "rehearsal.json").exists()


WRITES = (
    BEGIN
    + "open(f'written-{rank}', 'w').write('x')\nopen('train.py', 'a').write('#')\nos.mkdir('made') if rank == 0 else None\n"
)


def test_what_a_script_writes_is_gone(jobs: Jobs) -> None:
    code, rehearsal = checked(jobs, WRITES)
    if not rehearsal["isolation"]["files_apart"]:  # type: ignore[index]
        pytest.skip(f"no overlay here: {rehearsal['isolation']}")
    assert (code, rehearsal["answer"]) == (0, "agreed"), rehearsal
    assert {path.name for path in jobs.directory.iterdir()} == {"train.py", "run", "signals", "go"}
    assert (jobs.directory / "train.py").read_text() == WRITES


def test_in_place_what_it_writes_stays(jobs: Jobs) -> None:
    assert checked(jobs, WRITES, "--in-place")[1]["answer"] == "agreed"
    assert (jobs.directory / "written-1").read_text() == "x"


def test_the_network_is_left_where_it_is_asked_for(jobs: Jobs) -> None:
    text = BEGIN + "import socket\nassert len(socket.if_nameindex()) > 1\n"
    if len(socket.if_nameindex()) < 2:
        pytest.skip("there is no network here")
    assert checked(jobs, text, "--network")[1]["answer"] == "agreed"


NAMES_CUDA = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("nccl")
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
device = torch.device("cuda", local)
model = DDP(torch.nn.Linear(4, 4).cuda(), device_ids=[local])
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
side = torch.cuda.Stream()
for step in range(3):
    with torch.cuda.stream(side):
        batch = torch.randn(2, 4, pin_memory=True).to(device, non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(batch).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer); scaler.update()
    print(torch.cuda.max_memory_allocated() / 2**20)
torch.cuda.synchronize()
"""


@pytest.mark.parametrize(
    ("end", "answer"),
    [
        pytest.param("dist.barrier()\n", "agreed", marks=pytest.mark.slow),
        ("if local: dist.barrier()\nelse: dist.broadcast(batch, 0)\n", "differs"),
    ],
)
def test_the_cpu_stands_in_for_gpus_that_a_script_names(jobs: Jobs, end: str, answer: str) -> None:
    rehearsal = checked(jobs, NAMES_CUDA + end)[1]
    assert (rehearsal["answer"], rehearsal["on_cpu"]) == (answer, True), rehearsal


EPOCHS = (
    BEGIN
    + """
data = torch.utils.data.DataLoader(range(LENGTH), batch_size=1)
seen = [int(batch) for batch in data]
assert len(seen) == len(data) < 40 and seen[0] == 0 and seen[-1] == LENGTH - 1, seen
for batch in data: dist.all_reduce(batch)
"""
)


@pytest.mark.parametrize(
    ("length", "answer"), [pytest.param("1000", "agreed", marks=pytest.mark.slow), ("1000 + rank", "differs")]
)
def test_shorter_epochs_keep_their_ends(jobs: Jobs, length: str, answer: str) -> None:
    text = EPOCHS.replace("LENGTH", f"({length})")
    rehearsal = checked(jobs, text, "--steps", "4", "--nproc", "3")[1]
    assert (rehearsal["answer"], rehearsal["world_size"]) == (answer, 3), rehearsal
