"""`nsadiag where slurm:JOB` and `ray:JOB`: the ranks or actors of all nodes, asked where they run."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

from nsadiag.agent.whereabouts import Whereabouts
from nsadiag.commands.live.where_node import MARK
from nsadiag.engines import slurm_steps
from nsadiag.errors import MachineError, UsageError
from nsadiag.evidence.documents.values import rows_of
from nsadiag.printing import note

ANSWER_S = 30.0


def of_slurm(job: str) -> list[Whereabouts]:
    """Raises NsadiagError where there is no such job, or none of its nodes has a rank."""
    running = slurm_steps.running_job(job)
    words = [sys.executable, "-m", "nsadiag.commands.live.where_node", running.job_id]
    said, errors = slurm_steps.answers_of_each_node(running, words)
    answers = [json.loads(line.removeprefix(MARK)) for line in said.splitlines() if line.startswith(MARK)]
    silent = sorted({*running.nodes} - {answer["host"] for answer in answers})
    if silent:
        note(f"nsadiag: no answer from {', '.join(silent)}")
    found = [each for answer in answers for each in _on(answer)]
    if not found:
        why = f": {slurm_steps.error_in(errors)}" if errors.strip() else ""
        raise UsageError(
            f"job {running.job_id} has no rank on {', '.join(running.nodes)}{why}",
            "a rank is a Python process with RANK in its environment, as torchrun and srun-based launchers set it",
        )
    return sorted(found, key=lambda each: each.rank)


def _on(answer: dict[str, Any]) -> list[Whereabouts]:
    return [replace(each, host=answer["host"]) for each in rows_of(Whereabouts, answer["ranks"])]


class Looker:
    """An actor on a node of somebody else's job; it takes nothing that the job could need."""

    def look(self, numbered: dict[int, int]) -> str:
        """The places of these processes, as JSON."""
        from nsadiag.commands.live.where_node import of_pids

        return json.dumps([each.to_json() for each in of_pids(numbered)])


def of_ray(job: str) -> list[Whereabouts]:
    """The driver and all actors, by the numbers that `attach` gives them. Raises NsadiagError."""
    from nsadiag.engines.on_ray.cluster import connect
    from nsadiag.engines.on_ray.looker import on_node
    from nsadiag.engines.on_ray.survey import driver_of, drivers, stubs_of, survey

    ray = connect(None, None)
    try:
        stubs = stubs_of(ray)
        driver = driver_of(drivers(stubs, ray.get_runtime_context().get_job_id()), job)
        surveyed = survey(ray, stubs, driver)
        remote, addresses = ray.remote(Looker), {node["id"]: node["address"] for node in surveyed["nodes"]}
        by_node: dict[str, dict[int, int]] = {}
        for process in surveyed["processes"]:
            by_node.setdefault(process["node"], {})[process["pid"]] = process["number"]
        actors = {node: remote.options(**on_node(ray, node)).remote() for node in by_node}
        asked = {actors[node].look.remote(numbered): node for node, numbered in by_node.items()}
        try:
            ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S)
            for each in late:
                note(f"nsadiag: no answer from {addresses.get(asked[each], asked[each][:8])}")
            found = [
                replace(one, host=str(addresses.get(asked[each], "")))
                for each in ready
                for one in rows_of(Whereabouts, json.loads(ray.get(each)))
            ]
        finally:
            for actor in actors.values():
                ray.kill(actor)
        if not found:
            raise MachineError(f"job {driver.job} has no process that answers", "it may just have ended")
        return sorted(found, key=lambda each: each.rank)
    finally:
        ray.shutdown()
