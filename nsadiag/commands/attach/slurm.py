"""`nsadiag attach slurm:JOB`: a job that Slurm runs, looked at on all its nodes and judged as one."""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path
from typing import Any

from nsadiag.agent.attaching.nodes import join_looks, write_joint
from nsadiag.commands import output
from nsadiag.commands.run import RunResult, exit_code, judge_and_report
from nsadiag.engines import slurm_steps
from nsadiag.errors import MachineError, UsageError
from nsadiag.evidence.layout import RunDir


def attach_slurm(job: str, *, out: Path | None, force: bool) -> RunResult:
    """Raises NsadiagError before anything was written, or where no rank could be found."""
    running = slurm_steps.running_job(job)
    run = output.prepare(out, f"attach-slurm-{job}", force=force)
    nonce, started_ns = uuid.uuid4().hex, time.monotonic_ns()
    about: dict[str, Any] = {
        "kind": "attach",
        "name": f"attach-slurm-{job}",
        "command": ["nsadiag", "attach", f"slurm:{job}"],
        "started_at": output.now(),
        "nonce": nonce,
    }
    output.write_run(run, **about)
    words = [
        sys.executable,
        "-m",
        "nsadiag.commands.attach.node",
        str(run.path.resolve()),
        running.job_id,
        nonce,
    ]
    said = slurm_steps.on_each_node(running, words)
    look = join_looks(run, running.nodes)
    _check(run, running, said, found=bool(look.motions))
    if look.judgement == "still":
        slurm_steps.on_each_node(running, [*words, str(look.number)])
    write_joint(run, look, running.nodes, started_ns)
    about["gaps"] = look.gaps
    output.write_run(run, **about)
    verdict = judge_and_report(run, about)
    return RunResult(
        directory=run.path, verdict=verdict, exit_code=exit_code(verdict, None, passthrough=False)
    )


def _check(run: RunDir, running: slurm_steps.RunningJob, said: str, *, found: bool) -> None:
    if "does not see" in said:
        raise MachineError(
            f"{slurm_steps.error_in(said)}", "give --out a directory that all nodes of the job share"
        )
    if "more than one rank" in said:
        raise UsageError(
            f"job {running.job_id} runs more than one job of torchrun: {slurm_steps.error_in(said)}",
            "on the node: nsadiag attach PID, with the pid of one launcher",
        )
    if not found and not any(run.ranks()):
        why = f": {slurm_steps.error_in(said)}" if said.strip() else ""
        raise UsageError(
            f"job {running.job_id} has no rank on {', '.join(running.nodes)}{why}",
            "a rank is a Python process with RANK in its environment, as torchrun and srun-based launchers set it",
        )
