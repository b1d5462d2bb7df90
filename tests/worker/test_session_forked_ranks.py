"""Ranks that multiprocessing forks: how they end is told by the user's own lines, and by the code that they end with."""

import json
from textwrap import dedent

from support.jobs import Jobs

# Rank 1 finds its share empty and leaves, the others fail for want of it; nobody makes a step that torch's optimizers know.
LEAVES = """
    import os, socket, sys
    import torch, torch.distributed as dist, torch.multiprocessing as mp

    def batches(rank):
        for step in range(40):
            if rank == 1 and step == 6:
                print("nothing to read")
                sys.exit(0)
            yield torch.ones(4)

    def train(rank, port):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="3")
        dist.init_process_group("gloo")
        for batch in batches(rank):
            dist.all_reduce(batch)

    if __name__ == "__main__":
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        mp.start_processes(train, args=(port,), nprocs=3, start_method="fork")
"""


def test_a_forked_rank_that_leaves_early_is_told_with_the_line_that_let_it(jobs: Jobs) -> None:
    (jobs.directory / "train.py").write_text(dedent(LEAVES))
    jobs.run("run", "--out", "run", "--", "python", "train.py")
    verdict = json.loads((jobs.directory / "run" / "verdict.json").read_text())
    assert (verdict["class"], verdict["guilty_ranks"]) == ("rank_exited_early", [1]), verdict["summary"]
    assert verdict["where"]["code"] == "sys.exit(0)"
    left = json.loads((jobs.directory / "run/ranks/00000/leaving.json").read_text())
    assert left["ended_with"] == 1


def test_a_command_that_fails_after_its_ranks_is_not_healthy(jobs: Jobs) -> None:
    (jobs.directory / "train.py").write_text(
        dedent(LEAVES).replace("rank == 1 and", "False and") + "    sys.exit(3)\n"
    )
    jobs.run("run", "--out", "run", "--", "python", "train.py")
    verdict = json.loads((jobs.directory / "run" / "verdict.json").read_text())
    assert verdict["class"] == "unknown", verdict["summary"]
    assert "exit code 3" in verdict["summary"]
