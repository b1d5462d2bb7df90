"""`nsadiag matrix --engine slurm`: each cell is a job, and whatever becomes of a job, its cell has a verdict."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from support.cluster.hosts import send
from support.cluster.slurm import Slurm
from support.jobs import BIN, GIVE_UP_S, wait_until

SPEC = """
name: tiny
command: cell.py
probes: light
stall_after_s: 1
timeout_s: 60
axes:
  what:
    values:
      ok: {args: ok}
      crash: {args: crash, world_size: 2}
      lost: {args: lost}
"""
# Ranks that need no torch: a rank is one by its RANK.
CELL = """
import os, signal, sys, time
what, rank = sys.argv[-1], os.environ["RANK"]
print("this is", what, rank, "on", os.uname().nodename, flush=True)
if what == "crash" and rank == "1":
    raise ValueError("the cell's own mistake")
if what == "lost":
    # Whoever watches it dies with it, as on a machine that fails.
    os.system("pkill -KILL -f '.what.: .lost.'")
    time.sleep(60)
if what == "wait":
    open(f"started-{os.environ['SLURM_JOB_ID']}", "w").close()
    signal.pause()
"""
NSADIAG = BIN / "nsadiag"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "cell.py").write_text(CELL)
    (tmp_path / "m.yaml").write_text(SPEC)
    return tmp_path / "m.yaml"


def cells_of(out: Path) -> dict[str, dict[str, Any]]:
    return {c["factors"]["what"]: c for c in json.loads((out / "matrix.json").read_text())["cells"]}


def line(*words: str | Path) -> list[str | Path]:
    return [NSADIAG, "matrix", "m.yaml", "--engine", "slurm", *words]


def test_each_cell_is_a_job_and_a_job_without_a_result_is_unknown_in_slurms_words(
    slurm: Slurm, spec: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = slurm.head.run(*line("--partition", "debug", "--out", out), cwd=tmp_path, check=False)
    assert done.returncode == 1, done.stdout + done.stderr + slurm.logs()
    cells = cells_of(out)
    assert {what: cell["verdict"]["class"] for what, cell in cells.items()} == {
        "ok": "healthy", "crash": "rank_exception", "lost": "unknown",
    }, done.stdout  # fmt: skip
    assert cells["crash"]["verdict"]["guilty_ranks"] == [1] and cells["crash"]["verdict"]["world_size"] == 2
    assert "this is ok 0 on node" in (out / "cells/what=ok/ranks/00000/stdout.log").read_text()
    lost = cells["lost"]["verdict"]
    assert "FAILED (NonZeroExitCode), exit code 137:0, on node" in lost["summary"]
    assert all((out / evidence["source"]).exists() for evidence in lost["evidence"])
    assert "ended without a result: job" in done.stdout and "submitted 3 jobs to slurm" in done.stderr
    assert slurm.jobs() == []
    wait_until(
        lambda: not [line for node in slurm.nodes for line in node.processes().values() if "nsadiag" in line],
        "no orphan",
    )


@pytest.mark.slow
def test_jobs_are_cancelled_by_ctrl_c_and_left_to_go_on_by_a_kill(
    slurm: Slurm, spec: Path, tmp_path: Path
) -> None:
    """And either way --resume goes on: with new jobs, or with those that still run."""
    spec.write_text(SPEC.replace("lost", "wait").replace("stall_after_s: 1", "stall_after_s: 50"))
    out = tmp_path / "out"
    words = line("--out", out, "-k", "ok or wait")
    (tmp_path / "out").mkdir()
    started = slurm.head.start(*words, cwd=tmp_path)
    wait_until(lambda: list(tmp_path.glob("started-*")), "the cell waits")
    wait_until((out / "cells/what=ok/verdict.json").exists, "the other one is done")
    send(started, signal.SIGINT)
    stdout, stderr = started.communicate(timeout=GIVE_UP_S)
    assert started.returncode == 130 and "cancelled 1" in stderr, stdout + stderr
    wait_until(lambda: not slurm.jobs(), "it is cancelled")
    assert len(list(tmp_path.glob("started-*"))) == 1

    started = slurm.head.start(*words, "--resume", cwd=tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("started-*"))) == 2, "the cell waits again")
    send(started, signal.SIGKILL)
    started.communicate(timeout=GIVE_UP_S)
    (running,) = slurm.jobs()
    assert "RUNNING" in running
    started = slurm.head.start(*words, "--resume", cwd=tmp_path)
    meta = json.loads((out / "cells/what=wait/ranks/00000/meta.json").read_text())
    next(node for node in slurm.nodes if node.name == meta["host"]).run("kill", "-KILL", str(meta["pid"]))
    _, stderr = started.communicate(timeout=GIVE_UP_S)
    assert "submitted" not in stderr
    assert cells_of(out)["wait"]["verdict"]["class"] == "rank_killed"
    assert len(list(tmp_path.glob("started-*"))) == 2


def test_why_jobs_wait_is_said(slurm: Slurm, spec: Path, tmp_path: Path) -> None:
    slurm.head.run("sbatch", "-N2", "--exclusive", "--wrap", "sleep 100", cwd=tmp_path)
    wait_until(lambda: any("RUNNING" in job for job in slurm.jobs()), "both nodes are taken")
    started = slurm.head.start(*line("--out", "out", "-k", "ok"), cwd=tmp_path)
    assert started.stderr is not None
    said = ""
    while "1 job waits (Resources)" not in said:
        said += (new := started.stderr.readline())
        assert new, said
    send(started, signal.SIGINT)
    started.communicate(timeout=GIVE_UP_S)
    assert started.returncode == 130
    wait_until(lambda: len(slurm.jobs()) == 1, "it waits no more")


def test_a_dry_run_prints_the_scripts_and_submits_nothing(slurm: Slurm, spec: Path, tmp_path: Path) -> None:
    more = ("--account", "research", "--gpus-per-node", "2", "--slurm", "qos=high", "--time", "1:30:00")
    shown = slurm.head.run(*line("--dry-run", *more), cwd=tmp_path).stdout
    for wanted in (
        "account=research", "gpus-per-node=2", "qos=high", "time=90", "array=0-1%2", "0: what=ok", "1: what=lost",
    ):  # fmt: skip
        assert wanted in shown
    checked = slurm.head.run("bash", "-n", "-c", shown, check=False)
    assert checked.returncode == 0 and slurm.jobs() == []
    assert [
        path.name for path in tmp_path.iterdir() if path.name not in ("cell.py", "m.yaml", ".hosts")
    ] == []


def test_what_slurm_refuses_is_one_clear_line(slurm: Slurm, spec: Path, tmp_path: Path) -> None:
    done = slurm.head.run(*line("--partition", "nowhere"), cwd=tmp_path, check=False)
    assert done.returncode == 3 and "invalid partition" in done.stderr and "Traceback" not in done.stderr
    assert "hint: sinfo" in done.stderr
