"""Looking into a job that Slurm runs: where it is, and commands on its nodes beside what runs there."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from nsadiag.deadlines import programs
from nsadiag.errors import MachineError, UsageError

ASK_S = 30.0
CANCEL_S = 5.0  # for srun to end its step on every node
STEP_S = 180.0  # two looks 5 s apart, stacks of many ranks, and a node that does not answer


@dataclass(frozen=True, kw_only=True)
class RunningJob:
    """A job that runs now. Of an array's task the id is its own, not `ARRAY_TASK`."""

    job_id: str
    nodes: list[str]


def running_job(job: str) -> RunningJob:
    """Raises UsageError if there is none that runs, MachineError if Slurm cannot be asked."""
    if not re.fullmatch(r"\d+(_\d+)?", job):
        raise UsageError(
            f"slurm:{job} is no job", "give the number that squeue shows: nsadiag attach slurm:4711"
        )
    if shutil.which("squeue") is None or shutil.which("srun") is None:
        raise MachineError(
            "there is no Slurm here", "start it where srun works: a login node, or a node of the job"
        )
    done = _ask("squeue", "-h", "-j", job, "-o", "%A|%T|%N|%r")
    rows = [line.split("|", 3) for line in done.stdout.splitlines()]
    if not rows:
        raise UsageError(f"Slurm has no job {job} that waits or runs", "squeue --me lists yours")
    if len(rows) > 1:
        raise UsageError(f"job {job} is an array of {len(rows)}", f"name one of its tasks: slurm:{job}_0")
    job_id, state, nodes, reason = rows[0]
    if state != "RUNNING":
        raise UsageError(f"job {job} does not run: {state} ({reason})", "attach when it does")
    names = _ask("scontrol", "show", "hostnames", nodes).stdout.split()
    return RunningJob(job_id=job_id, nodes=names)


def on_each_node(job: RunningJob, command: Sequence[str]) -> str:
    """Runs it once on each node, beside what runs there; what it and srun said on stderr."""
    return _step(job, command, STEP_S)[1]


def answers_of_each_node(job: RunningJob, command: Sequence[str]) -> tuple[str, str]:
    """The same of a command that answers at once: what all of them and srun said on stdout and stderr."""
    return _step(job, command, ASK_S)


def _step(job: RunningJob, command: Sequence[str], seconds: float) -> tuple[str, str]:
    count = str(len(job.nodes))
    step = (
        "srun", f"--jobid={job.job_id}", "--overlap", "--nodes", count, "--ntasks", count, "--ntasks-per-node=1",
        "--cpus-per-task=1", "--cpu-bind=none", "--kill-on-bad-exit=0", "--input=none", "--job-name=nsadiag-attach",
    )  # fmt: skip
    try:
        done = programs.run([*step, *command], seconds=seconds, grace_s=CANCEL_S)
    except programs.Unfinished as late:
        return late.stdout, late.stderr
    return done.stdout, done.stderr


def error_in(said: str) -> str:
    """The first line of it that is an error, without what announces it."""
    line = next((line for line in said.splitlines() if "error:" in line), said.strip().splitlines()[-1])
    return line.rpartition("error: ")[2].strip()


def _ask(*command: str) -> programs.Finished:
    try:
        done = programs.run(command, seconds=ASK_S)
    except TimeoutError:
        raise MachineError(
            f"{command[0]} does not answer", "is Slurm's controller up? (scontrol ping)"
        ) from None
    if done.returncode and "Invalid job id" not in done.stderr:
        raise MachineError(
            f"{command[0]}: {done.stderr.strip()}", "is Slurm's controller up? (scontrol ping)"
        )
    return done
