"""Slurm: each cell is a job, cells of the same shape are one job array, submitted through submitit.

submitit starts a task on each node of a job, and each becomes our command. Neither its results nor its states are
used: it asks sacct, which many clusters do not have, and which lags where they do.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nsadiag.deadlines import programs
from nsadiag.engines.batch import BatchEngine, BatchOptions, JobState, Task, seat
from nsadiag.errors import MachineError, UsageError

ASK_S = 30.0  # Slurm's commands answer at once, or wait for a controller that is away
# Slurm warns a job so long before its time is up, and then the agent ends its ranks and writes what it knows.
WARNING_S = 90
ARRAY_MOST = 1000  # tasks of one array, where nobody has changed Slurm's MaxArraySize
OURS = {
    "nodes": "--nodes",
    "partition": "--partition",
    "account": "--account",
    "gpus-per-node": "--gpus-per-node",
    "time": "--time",
    "array": "--slots",
    "ntasks-per-node": "",
    "output": "",
    "error": "",
}


def run_on_node(command: list[str]) -> None:
    """Becomes the command. submitit calls it, on each node of a job."""
    import submitit

    here = submitit.JobEnvironment()
    os.environ |= seat(
        job_id=str(here.job_id),
        node_rank=here.global_rank,
        nnodes=here.num_tasks,
        master_addr=str(here.hostnames[0]),
    )
    sys.stdout.flush()
    os.execvp(command[0], command)


class Slurm(BatchEngine):
    """Made of the command line's options; submits nothing yet."""

    def __init__(self, options: BatchOptions) -> None:
        options.only("slurm", "partition", "account", "gpus_per_node", "more")
        for key in options.more:
            if key in OURS:
                instead = f"use {OURS[key]}" if OURS[key] else "nsadiag sets it"
                raise UsageError(f"--slurm {key} is not for you to set", instead)
        self._options = options
        _submitit()
        if not options.dry_run and shutil.which("sbatch") is None:
            raise MachineError(
                "there is no sbatch here",
                "start it where jobs are submitted from, or read the script: --dry-run",
            )

    def plan(self, tasks: Sequence[Task], logs: Path) -> str:
        """The scripts, each with the cells that it is for."""
        scripts = []
        for parameters, group in self._arrays(tasks):
            text = _script(parameters, group, logs)
            what = "".join(f"#   {number}: {task.name}\n" for number, task in enumerate(group))
            scripts.append(f"# {len(group)} cells, by number in the array:\n{what}{text}")
        return "\n".join(scripts)

    def submit(self, tasks: Sequence[Task], logs: Path) -> list[str]:
        """Raises MachineError where Slurm refuses."""
        submitit = _submitit()
        ids: dict[str, str] = {}
        for parameters, group in self._arrays(tasks):
            executor = submitit.SlurmExecutor(folder=logs)
            executor.update_parameters(**parameters)
            try:
                jobs = executor.map_array(run_on_node, [task.command for task in group])
            except submitit.core.utils.FailedJobError as error:
                if ids:
                    self.cancel(list(ids.values()))
                raise MachineError(f"Slurm refused the job: {_last_line(str(error))}", REFUSED) from None
            ids |= {task.name: job.job_id for task, job in zip(group, jobs, strict=True)}
        return [ids[task.name] for task in tasks]

    def states(self, ids: Sequence[str]) -> dict[str, JobState]:
        """By squeue: a job that it does not list has ended."""
        arrays = sorted({number.partition("_")[0] for number in ids})
        done = _ask("squeue", "-h", "-r", "-o", "%i|%T|%r|%N", "-j", ",".join(arrays))
        if done.returncode and "Invalid job id" not in done.stderr:
            return {number: JobState(phase="untold", words=_last_line(done.stderr)) for number in ids}
        listed = {}
        for line in done.stdout.splitlines():
            number, state, reason, nodes = line.split("|", 3)
            waits = state == "PENDING"
            listed[number] = JobState(
                phase="pending" if waits else "running", words=reason if waits else f"{state} on {nodes}"
            )
        return {number: listed.get(number, JobState(phase="ended")) for number in ids}

    def epitaph(self, job_id: str, logs: Path) -> list[tuple[str, Path | None]]:
        """State, reason and exit code as the controller or the accounting still know them, and the ends of the logs."""
        return [(words, None) for words in (_controller(job_id) or _accounting(job_id))] + list(
            _log_ends(job_id, logs)
        )

    def cancel(self, ids: Sequence[str]) -> None:
        """The jobs' agents are sent SIGTERM: they end their ranks and write what they know."""
        if ids:
            _ask("scancel", *ids)

    def _arrays(self, tasks: Sequence[Task]) -> Iterator[tuple[dict[str, Any], list[Task]]]:
        """Tasks that need the same, with submitit's parameters for them."""

        def shape(task: Task) -> tuple[int, int, int]:
            return task.nodes, task.ranks_per_node, self._minutes(task)

        for _, group in itertools.groupby(sorted(tasks, key=shape), key=shape):
            members = list(group)
            for first in range(0, len(members), ARRAY_MOST):
                yield self._parameters(members[0]), members[first : first + ARRAY_MOST]

    def _minutes(self, task: Task) -> int:
        seconds = self._options.time_s or task.seconds + WARNING_S
        return max(int(-(-seconds // 60)), 1)

    def _parameters(self, task: Task) -> dict[str, Any]:
        options = self._options
        more: dict[str, Any] = {key: value or True for key, value in options.more.items()}
        given: dict[str, Any] = {
            "job_name": options.name,
            "partition": options.partition,
            "account": options.account,
            "nodes": task.nodes,
            "ntasks_per_node": 1,
            "gpus_per_node": options.gpus_per_node,
            # Unasked, Slurm gives a task one core.
            "cpus_per_task": None
            if "cpus-per-task" in more or "cpus-per-gpu" in more
            else task.ranks_per_node,
            "time": self._minutes(task),
            "signal_delay_s": WARNING_S,
            "array_parallelism": options.at_once or 256,
            "stderr_to_stdout": True,
            # A job that is started over after its node failed would write over what the first one left.
            "additional_parameters": {"no-requeue": True, **more},
        }
        return {key: value for key, value in given.items() if value is not None}


REFUSED = "sinfo lists partitions and nodes, sacctmgr show assoc user=$USER the accounts"


def _submitit() -> Any:
    try:
        import submitit
        import submitit.core.utils
    except ImportError:
        raise MachineError("engine slurm needs submitit", "pip install 'nsadiag[slurm]'") from None
    return submitit


def _script(parameters: dict[str, Any], group: list[Task], logs: Path) -> str:
    """As submitit writes it; `submit` has it written by the same function."""
    _submitit()
    from submitit.slurm import slurm

    command = f"{sys.executable} -u -m submitit.core._submit {logs}"
    # One task alone is a job and no array.
    count = len(group) if len(group) > 1 else None
    return str(slurm._make_sbatch_string(command=command, folder=logs, map_count=count, **parameters))


def _ask(*command: str) -> programs.Finished:
    try:
        return programs.run(command, seconds=ASK_S)
    except OSError as error:
        return programs.Finished(returncode=1, stdout="", stderr=f"{command[0]}: {error}")


def _controller(job_id: str) -> list[str]:
    """A line from the controller about the job, which it forgets minutes after its end (MinJobAge)."""
    shown = _ask("scontrol", "show", "job", "-o", job_id).stdout
    told = dict(word.split("=", 1) for word in shown.split() if "=" in word)
    if "JobState" not in told:
        return []
    code, on = told.get("ExitCode", "?"), told.get("NodeList", "(null)")
    where = "never started" if on == "(null)" else f"on {on}"
    return [f"job {job_id}: {told['JobState']} ({told.get('Reason', '?')}), exit code {code}, {where}"]


def _accounting(job_id: str) -> list[str]:
    """A line from accounting about the job, where accounting is enabled."""
    shown = _ask("sacct", "-X", "-P", "-n", "-o", "State,ExitCode,NodeList", "-j", job_id).stdout.strip()
    said = (
        f"sacct says of job {job_id}: {shown}" if shown else f"Slurm knows nothing of job {job_id} any more"
    )
    return [said]


def _log_ends(job_id: str, logs: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(logs.glob(f"{job_id}_*_log.out")):
        lines = path.read_text(errors="replace").strip().splitlines()[-3:]
        if lines:
            yield f"its output ends with: {' / '.join(line.strip() for line in lines)}", path


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason given")
