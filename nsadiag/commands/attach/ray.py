"""`nsadiag attach ray:JOB`: a job that runs on a Ray cluster, looked at on all its nodes and judged as one."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import Any

from nsadiag.commands import output
from nsadiag.commands.attach.ray_node import LOOKED
from nsadiag.commands.run import RunResult, exit_code, judge_and_report
from nsadiag.engines.on_ray.cluster import connect
from nsadiag.engines.on_ray.looker import look_on_nodes, questions_of
from nsadiag.engines.on_ray.survey import driver_of, drivers, moved_between, stubs_of, survey
from nsadiag.errors import MachineError
from nsadiag.evidence.layout import RunDir, read_json, write_json
from nsadiag.evidence.secrets.masking import mask_text
from nsadiag.evidence.user_code import roots_of
from nsadiag.printing import note

SKEW_MS = 1000.0  # by which the clocks of nodes may differ
REPORTED_S = 1.2  # calls report their states to the control store once a second


def attach_ray(job: str, *, out: Path | None, force: bool) -> RunResult:
    """Raises NsadiagError before anything was written, or where no process could be looked at."""
    ray = connect(None, None)
    try:
        return _attached(ray, job, out=out, force=force)
    finally:
        ray.shutdown()


def _attached(ray: Any, job: str, *, out: Path | None, force: bool) -> RunResult:
    stubs = stubs_of(ray)
    driver = driver_of(drivers(stubs, ray.get_runtime_context().get_job_id()), job)
    name = f"attach-ray-{driver.submission or driver.job}"
    run = output.prepare(out, name, force=force)
    about: dict[str, Any] = {
        "kind": "attach", "name": name, "command": ["nsadiag", "attach", f"ray:{job}"],
        "started_at": output.now(), "entrypoint": mask_text(driver.entrypoint),
    }  # fmt: skip
    output.write_run(run, **about)
    document = _looked(ray, run, stubs, driver)
    about["gaps"] = document["gaps"]
    output.write_run(run, **about)
    verdict = judge_and_report(run, about)
    note(f"nsadiag: {verdict.certainty or verdict.outcome}: {verdict.summary}")
    return RunResult(
        directory=run.path, verdict=verdict, exit_code=exit_code(verdict, None, passthrough=False)
    )


def _looked(ray: Any, run: RunDir, stubs: Any, driver: Any) -> dict[str, Any]:
    """Two captures of all processes, between two surveys: ray.json."""
    roots = roots_of(shlex.split(driver.entrypoint, posix=False), os.getppid())
    first = survey(ray, stubs, driver)
    if not first["processes"]:
        raise MachineError(
            f"job {driver.job} has no process that runs", "; ".join(first["gaps"]) or "it may just have ended"
        )
    answered, gaps = look_on_nodes(ray, questions_of(first["processes"], roots), run.path)
    if not answered:
        raise MachineError(
            "no node of the cluster answered",
            f"{gaps[0] if gaps else 'no answer'}; nsadiag has to be installed on each node",
        )
    time.sleep(REPORTED_S)
    second = survey(ray, stubs, driver)
    told = [read_json(path, {}) for path in run.path.glob(f"nodes/*/{LOOKED}")]
    began_ms = min((float(each.get("began_ms", 0)) for each in told), default=0.0)
    document = {
        **second,
        "processes": _ranked(first, told),
        "moved": moved_between(first, second, began_ms - SKEW_MS),
        "gaps": [*second["gaps"], *gaps],
        "user_code": list(roots),
        "watched_s": max(second["taken_ms"] - began_ms, 0.0) / 1000,
    }
    write_json(run.path / "ray.json", document)
    return document


def _ranked(found: dict[str, Any], told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The processes, those of Ray Train with their ranks."""
    ranks: dict[str, int] = {}
    for each in told:
        ranks |= each.get("train_ranks", {})
    addresses = {node["id"]: node["address"] for node in found["nodes"]}
    return [
        {**process, "rank": ranks.get(f"{addresses.get(process['node'])} {process['pid']}")}
        for process in found["processes"]
    ]
