"""Commands that collect one more piece of evidence, for the launcher that a job was started with."""

from __future__ import annotations

import json

from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.spans import rank_names

SCRIPT = "train.py"  # where no stack or traceback tells the name of the user's
TO = "evidence"  # the directory into which they write


def stacks(cell: CellEvidence) -> str:
    """The stacks of all ranks, as they are now."""
    script = script_of(cell)
    dump = f"for p in $(pgrep -f {script}); do py-spy dump --pid $p"
    return {
        "slurm": f"srun --jobid=<job> --overlap --ntasks-per-node=1 bash -c 'mkdir -p {TO}; {dump} > {TO}/$(hostname)_$p.txt; done'",
        "kubernetes": f"for pod in $(kubectl get pods -l <label of the job> -o name); do kubectl exec $pod -- bash -c '{dump}; done' > {TO}_$(basename $pod).txt; done",
        "ray": f"ray stack > {TO}.txt   # on each node",
    }.get(launcher_of(cell), f"mkdir -p {TO}; {dump} > {TO}/$(hostname)_$p.txt; done   # on each node")


def recorders(cell: CellEvidence) -> str:
    """The next attempt with the flight recorder, which writes a dump of each rank at the next timeout."""
    switches = {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"$PWD/{TO}/trace_rank_",
    }
    return f"mkdir -p {TO}; {_with(cell, switches)}"


def all_logs(cell: CellEvidence) -> str:
    """The lines of every rank, on every node, each with its rank."""
    script = script_of(cell)
    return {
        "slurm": f"srun --label --output={TO}/%j_%t.log python {script}   # or the files that this step's --output names, of all tasks",
        "kubernetes": "kubectl logs -l <label of the job> --all-containers --prefix --tail=-1 > all.log   # --previous after a restart",
        "ray": f"ray job logs <job> > {TO}.log; tar czf {TO}.tgz /tmp/ray/session_latest/logs   # on each node",
        "deepspeed": f"deepspeed --enable_each_rank_log {TO} {script}",
        "accelerate": f"accelerate launch --log_dir {TO} --redirects 3 --tee 3 {script}",
    }.get(launcher_of(cell), f"torchrun --log-dir {TO} --redirects 3 --tee 3 {script}   # on each node")


def transport(cell: CellEvidence) -> str:
    """The next attempt with NCCL's own log."""
    return _with(cell, {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"})


def kernel_log(cell: CellEvidence) -> str:
    """The record of ended processes of the kernel, the scheduler or the cluster."""
    return {
        "slurm": "sacct -j <job> --format=JobID,State,ExitCode,MaxRSS,ReqMem,NodeList   # and dmesg -T | grep -i 'killed process' on its node",
        "kubernetes": "kubectl describe pod <pod> | grep -A 8 'Last State'",
        "ray": "grep -ri 'memory pressure\\|oom' /tmp/ray/session_latest/logs/raylet.out",
    }.get(launcher_of(cell), "dmesg -T | grep -iE 'killed process|oom|xid'   # on the node of that rank")


def launcher_of(cell: CellEvidence) -> str:
    """The launcher or scheduler, as the evidence shows it; empty where it shows none."""
    return cell.collected.started_by if cell.collected else ""


def script_of(cell: CellEvidence) -> str:
    """The name of the user's script: the outermost file of a traceback or stack."""
    for rank in cell.ranks:
        files = [frame.file for frame in rank.exception.frames[:1]] if rank.exception else []
        files += [capture.main_frames[-1].filename for capture in rank.captures if capture.main_frames]
        names = [file.rpartition("/")[2] for file in files if file.endswith(".py")]
        if names:
            return names[0]
    return SCRIPT


def _with(cell: CellEvidence, variables: dict[str, str]) -> str:
    """The job once more, with these variables in the environment of all ranks."""
    shown = " ".join(f"{name}={value}" for name, value in variables.items())
    script = script_of(cell)
    listed = ",".join(variables)
    return {
        "slurm": f"{shown} srun --export=ALL python {script}",
        "kubernetes": f"kubectl set env <the job> {shown}   # or env: in its pod template; then start it again",
        "ray": f"ray job submit --runtime-env-json '{json.dumps({'env_vars': variables})}' -- python {script}",
        "deepspeed": f"{shown} deepspeed {script}   # of several nodes: write {listed} into .deepspeed_env",
        "accelerate": f"{shown} accelerate launch {script}",
    }.get(launcher_of(cell), f"{shown} torchrun <as before> {script}")


def of_ranks(ranks: tuple[int, ...]) -> str:
    """`rank 3's`, or `those of ranks 3-5`."""
    return f"rank {ranks[0]}'s" if len(ranks) == 1 else f"those of ranks {rank_names(ranks)}"
