"""`nsadiag check` on scripts that start their ranks themselves: each has an answer, and none of their processes outlives it."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import pytest
from support.jobs import Jobs, wait_until

# One rank, in whatever process it is: rank 1 makes another call than its peers where it is asked to.
RANK = """
import os, sys, torch, torch.distributed as dist

def main(rank, meeting):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
    dist.all_reduce(torch.ones(2))
    dist.barrier() if rank and "apart" in sys.argv else dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()
"""
SUBPROCESSES = (
    RANK
    + """
if __name__ == "__main__":
    import subprocess
    if "RANK" in os.environ:
        main(int(os.environ["RANK"]), os.environ["MEETING"])
    else:
        here = {**os.environ, "MEETING": __file__ + ".meet", "WORLD_SIZE": "2"}
        ranks = [subprocess.Popen([sys.executable, *sys.argv], env={**here, "RANK": str(n)}) for n in range(2)]
        sys.exit(max(abs(each.wait()) for each in ranks))
"""
)
PROCESSES = (
    RANK
    + """
if __name__ == "__main__":
    import multiprocessing
    context = multiprocessing.get_context(sys.argv[1])
    ranks = [context.Process(target=main, args=(n, __file__ + ".meet")) for n in range(2)]
    for each in ranks: each.start()
    for each in ranks: each.join()
    sys.exit(max(abs(each.exitcode) for each in ranks))
"""
)
SPAWNED = (
    RANK
    + """
if __name__ == "__main__":
    torch.multiprocessing.start_processes(main, (__file__ + ".meet",), nprocs=2, start_method=sys.argv[1])
"""
)


def rehearsed(jobs: Jobs, text: str, *arguments: str, seconds: int = 240) -> tuple[int, dict[str, Any]]:
    """Exit code and rehearsal; none of its processes is there any more."""
    script = jobs.directory / "train.py"
    script.write_text(text)
    done = jobs.run(
        "check", "--out", "run", "--seconds", str(seconds), "--json", "--", sys.executable, script, *arguments
    )
    assert not jobs.left()
    return done.returncode, json.loads((jobs.directory / "run" / "rehearsal.json").read_text())


@pytest.mark.parametrize("arguments", [(), ("apart",)], ids=["healthy", "apart"])
@pytest.mark.parametrize(
    ("text", "method"),
    [
        pytest.param(SUBPROCESSES, "", id="subprocesses"),
        pytest.param(PROCESSES, "fork", id="fork", marks=pytest.mark.slow),
        pytest.param(PROCESSES, "spawn", id="spawn", marks=pytest.mark.slow),
        pytest.param(PROCESSES, "forkserver", id="forkserver", marks=pytest.mark.slow),
        pytest.param(SPAWNED, "fork", id="torch fork", marks=pytest.mark.slow),
    ],
)
def test_ranks_of_a_launcher_of_its_own_are_compared(
    jobs: Jobs, text: str, method: str, arguments: tuple[str, ...]
) -> None:
    code, rehearsal = rehearsed(jobs, text, *filter(None, [method]), *arguments)
    assert (code, rehearsal["answer"]) == ((1, "differs") if arguments else (0, "agreed")), rehearsal
    assert rehearsal["matched"] >= 2


# The ranks say that they are here, and then compute for ever: before their group, or in it.
RUNS_ON = """
if __name__ == "__main__":
    import subprocess
    if "RANK" in os.environ:
        if "in" in sys.argv:
            dist.init_process_group("gloo", init_method="file://" + os.environ["MEETING"], rank=int(os.environ["RANK"]), world_size=2)
        open(os.environ["SIGNALS"], "w").write("here\\n")
        while True: pass
    here = {**os.environ, "MEETING": __file__ + ".meet", "WORLD_SIZE": "2"}
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env={**here, "RANK": str(n)}, start_new_session=True) for n in range(2)]
    sys.exit(max(abs(each.wait()) for each in ranks))
"""


@pytest.mark.parametrize("where", ["in", pytest.param("before", marks=pytest.mark.slow)])
def test_ranks_in_sessions_of_their_own_do_not_outlive_a_killed_command(cold_jobs: Jobs, where: str) -> None:
    (cold_jobs.directory / "train.py").write_text(RANK + RUNS_ON)
    command = cold_jobs.start("check", "--in-place", "--out", "run", "--", sys.executable, "train.py", where)
    for _ in range(2):
        cold_jobs.signals.wait()
    os.kill(command.pid, signal.SIGKILL)
    command.communicate()
    wait_until(lambda: not cold_jobs.left(), "the ranks gone")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ("import time\nwhile True: time.sleep(1)", "undecided"),
        ("while True: pass", "undecided"),
        ("sys.exit('no data')", "raised"),
        ("os._exit(3)", "raised"),
        ("os.abort()", "raised"),
    ],
)
def test_a_launcher_that_starts_no_rank_has_an_answer(jobs: Jobs, body: str, answer: str) -> None:
    code, rehearsal = rehearsed(jobs, f"import os, sys, torch\n{body}\n", seconds=20)
    assert rehearsal["answer"] == answer, rehearsal
    assert code == {"undecided": 3, "raised": 1}[answer]
