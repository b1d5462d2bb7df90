"""`nsadiag run --engine ray --nnodes N`: a launcher line on nodes of a Ray cluster, shown and judged as one job here."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nsadiag.agent import interrupts
from nsadiag.agent.job.launch import check_command
from nsadiag.cluster.protocol.tokens import new_token
from nsadiag.commands import nodes, output
from nsadiag.commands.batch import line
from nsadiag.commands.run import RunRequest, name_of
from nsadiag.engines.batch import seat
from nsadiag.engines.on_ray.cluster import Shape, connect, start_directory, why_waiting
from nsadiag.engines.on_ray.crew import Crew
from nsadiag.engines.on_ray.files import Output, fetched
from nsadiag.errors import EXIT_ENVIRONMENT, EXIT_INTERRUPTED, MachineError
from nsadiag.evidence.layout import RunDir

LOOK_S = 0.2
WHY_S = 2.0


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """The part of a cluster that the job gets."""

    nnodes: int
    gpus_per_node: int | None = None
    address: str | None = None
    runtime_env: Mapping[str, Any] | None = None
    wait_s: float = 300.0  # for the nodes, and for agents to meet


def run_on_ray(request: RunRequest, options: RayOptions) -> tuple[Path, int]:
    """The run directory, which is here at the end, and the exit code. Raises NsadiagError where it came to no job."""
    cwd = start_directory(options.runtime_env)
    if cwd is not None:
        check_command(request.command)
    ray = connect(options.address, options.runtime_env)
    run = output.prepare(request.out, name_of(request.command), force=request.force)
    ranks = _ranks_per_node(request.command)
    shape = Shape(options.nnodes, ranks, options.gpus_per_node or 0)
    crew = Crew(ray, shape, module=line.MODULE, cwd=cwd)
    shown = Output(ray, crew, sys.stderr if request.quiet_stdout else sys.stdout)
    code = EXIT_INTERRUPTED
    try:
        _gather(ray, crew, options.wait_s)
        crew.start(list(_jobs(crew, replace(request, out=run.path.resolve(), force=False), options.wait_s)))
        code = _follow(crew, shown, ranks)
    except KeyboardInterrupt:
        nodes.say("stopping: the nodes' agents end the job, and write what they know")
    finally:
        with interrupts.held_off():
            _end(ray, crew, shown, run)
    if not run.path.exists():
        raise MachineError("the job was not started", "what its nodes said is above")
    return run.path, code


def _ranks_per_node(command: list[str]) -> int:
    """As torchrun's line says; 1 where it does not."""
    each = nodes.line_of(command).options.get("nproc-per-node", "")
    return int(each) if each.isdecimal() else 1


def _gather(ray: Any, crew: Crew, seconds: float) -> None:
    """All agents are there. Raises MachineError."""
    deadline, asked, said = time.monotonic() + seconds, time.monotonic(), ""
    while crew.state in ("asked", "coming"):
        interrupts.check()
        crew.look()
        if crew.state == "asked" and time.monotonic() - asked > WHY_S:
            asked = time.monotonic()
            why = why_waiting(ray, crew.shape)
            if why and why != said:
                nodes.say(f"waiting: {why}")
            said = why or said
            if asked > deadline:
                raise MachineError(
                    f"there was no room after {seconds:g} s: {said}", "ray status; or give more --wait"
                )
        time.sleep(LOOK_S)
    if crew.lost:
        index, why = next(iter(crew.lost.items()))
        raise MachineError(
            f"no agent could be started on {crew.called(index)}: {why}", "is nsadiag installed there?"
        )


def _jobs(crew: Crew, request: RunRequest, wait_s: float) -> Iterator[dict[str, Any]]:
    """The job as each node is to hear of it."""
    head, nnodes = crew.places[0], crew.shape.nodes
    arguments = line.arguments(request, port=head["port"], token=new_token(), wait_s=wait_s)
    name = f"ray-{secrets.token_hex(4)}"
    for index in range(nnodes):
        about = seat(job_id=name, node_rank=index, nnodes=nnodes, master_addr=head["address"])
        yield {"arguments": arguments, "env": about}


def _follow(crew: Crew, shown: Output, ranks_per_node: int) -> int:
    """Node 0's exit code, after its output was shown."""
    said = ""
    while crew.state == "busy" and 0 not in crew.lost:
        interrupts.check()
        crew.look()
        shown.look()
        trouble = crew.trouble(ranks_per_node)
        if trouble and trouble != said:
            nodes.say(trouble)
        said = trouble
        time.sleep(LOOK_S)
    return crew.codes.get(0, EXIT_ENVIRONMENT)


def _end(ray: Any, crew: Crew, shown: Output, run: RunDir) -> None:
    """Nothing of it is left on the cluster, and what it wrote is here."""
    crew.leave()
    while not crew.has_left():
        time.sleep(LOOK_S)
    shown.finish()
    # Another node of the job may be this host, and leave a part of the directory here: the verdict is node 0's alone.
    if crew.places and 0 not in crew.lost and not run.verdict.exists():
        fetched(ray, crew.agents[0], run.path)
    crew.remove()
    ray.shutdown()
    if not any(run.path.iterdir()):
        run.path.rmdir()
