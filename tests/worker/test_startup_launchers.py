"""Ranks are recorded whoever starts them: accelerate, a notebook's launcher, DeepSpeed's way, forked processes."""

from __future__ import annotations

import json
import textwrap

import pytest
from support.jobs import Jobs

from nsadiag.evidence.layout import RunDir
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.evidence.ring.reader import read_blackbox

ACCELERATED = """
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 4)), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for (batch,) in loader:
        optimizer.zero_grad()
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
    accelerator.end_training()
"""
PLAIN = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 4)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
"""


def write(jobs: Jobs, name: str, text: str) -> None:
    (jobs.directory / name).write_text(textwrap.dedent(text))


def check_two_ranks(jobs: Jobs, *command: str) -> None:
    done = jobs.run("run", "--out", "run", "--", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads((jobs.directory / "run/verdict.json").read_text())
    assert (verdict["class"], verdict["world_size"], verdict["progress"]["steps_done"]) == ("healthy", 2, 4)
    for rank in RunDir(path=jobs.directory / "run").ranks():
        kinds = set(read_blackbox(rank.blackbox).events["kind"])
        assert {Kind.STEP, Kind.BACKWARD, Kind.GRADIENT, Kind.WRAP, Kind.PROCESS_GROUP} <= kinds


def test_accelerate_launch(jobs: Jobs) -> None:
    write(jobs, "job.py", ACCELERATED)
    plain = ("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")
    # --multi_gpu only chooses accelerate's torchrun; the script itself asks for the CPU.
    ranks = ("--multi_gpu", "--num_processes", "2", "--main_process_port", "0")
    check_two_ranks(jobs, "accelerate-launch", *ranks, *plain, "job.py")


@pytest.mark.slow
def test_a_notebooks_launcher_which_forks(jobs: Jobs) -> None:
    write(jobs, "job.py", ACCELERATED)
    write(
        jobs,
        "notebook.py",
        """
        import runpy, socket
        from accelerate import notebook_launcher

        def train():
            runpy.run_path("job.py")

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        notebook_launcher(train, (), num_processes=2, use_port=str(port))
        """,
    )
    check_two_ranks(jobs, "python", "notebook.py")


@pytest.mark.slow
def test_a_launcher_that_sets_the_environment_of_each_process_itself(jobs: Jobs) -> None:
    write(jobs, "job.py", PLAIN)
    # As DeepSpeed's launcher does it: a process a rank, with --local_rank on its line.
    write(
        jobs,
        "launcher.py",
        """
        import os, socket, subprocess, sys

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        ranks = [
            subprocess.Popen(
                [sys.executable, "-u", "job.py", f"--local_rank={rank}"],
                env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
            )
            for rank in range(2)
        ]
        sys.exit(max(rank.wait() for rank in ranks))
        """,
    )
    check_two_ranks(jobs, "python", "launcher.py")


@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(m, marks=pytest.mark.slow) for m in ("spawn", "forkserver"))]
)
def test_multiprocessing(jobs: Jobs, method: str) -> None:
    write(jobs, "job.py", PLAIN)
    write(
        jobs,
        "parent.py",
        f"""
        import multiprocessing, os, runpy, socket

        def rank(number, port):
            os.environ.update(RANK=str(number), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            runpy.run_path("job.py")

        if __name__ == "__main__":
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = str(free.getsockname()[1])
            context = multiprocessing.get_context("{method}")
            ranks = [context.Process(target=rank, args=(number, port)) for number in range(2)]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join()
            raise SystemExit(max(process.exitcode for process in ranks))
        """,
    )
    check_two_ranks(jobs, "python", "parent.py")
