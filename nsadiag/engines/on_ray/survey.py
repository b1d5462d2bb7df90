"""A job as the control store and the raylets of its cluster describe it: actors, calls, processes and what they own.

It needs no dashboard: Ray's own protocol buffers are asked for directly.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nsadiag.errors import UsageError

ANSWER_S = 30.0
MOST_TASKS = 20000
# By Ray's numbers. The last one is a step on the way, which says nothing of where the call is.
STATES = ("NIL", "PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "PENDING_OBJ_STORE_MEM_AVAIL", "PENDING_ARGS_FETCH",
          "SUBMITTED_TO_WORKER", "PENDING_ACTOR_TASK_ARGS_FETCH", "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY",
          "RUNNING", "RUNNING", "RUNNING", "FINISHED", "FAILED")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Stubs:
    """The services of one cluster."""

    channel: Any
    gcs: Any  # module of request types
    services: Any  # module of stubs

    def ask(self, service: str, call: str, **fields: Any) -> Any:
        """The answer of the control store."""
        stub = getattr(self.services, f"{service}GcsServiceStub")(self.channel)
        request = getattr(self.gcs, f"{call}Request")(**fields)
        return getattr(stub, call)(request, timeout=ANSWER_S)


def stubs_of(ray: Any) -> Stubs:
    """The control store of the cluster that this process is a driver of."""
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

    channel = init_grpc_channel(ray.get_runtime_context().gcs_address)
    return Stubs(channel=channel, gcs=gcs_service_pb2, services=gcs_service_pb2_grpc)


# -- which job -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Driver:
    """A job and the process that drives it."""

    job: str
    submission: str
    entrypoint: str
    pid: int
    node: str
    worker: str
    ended: bool


def drivers(stubs: Stubs, mine: str) -> list[Driver]:
    """All jobs of the cluster but ours, and Ray's own."""
    found = []
    for row in stubs.ask("JobInfo", "GetAllJobInfo").job_info_list:
        job = row.job_id.hex()
        metadata = dict(row.config.metadata)
        if job == mine or row.config.ray_namespace.startswith("_ray_internal"):
            continue
        found.append(
            Driver(
                job=job, submission=metadata.get("job_submission_id", ""), entrypoint=row.entrypoint,
                pid=row.driver_pid, node=row.driver_address.node_id.hex(),
                worker=row.driver_address.worker_id.hex(), ended=row.is_dead,
            )
        )  # fmt: skip
    return found


def driver_of(found: Iterable[Driver], asked: str) -> Driver:
    """The one that is asked for by its number or submission; with nothing asked, the only one that runs."""
    rows = sorted(found, key=lambda d: d.job)
    chosen = (
        [d for d in rows if asked in (d.job, d.submission)] if asked else [d for d in rows if not d.ended]
    )
    if len(chosen) == 1 and not chosen[0].ended:
        return chosen[0]
    running = "; ".join(f"ray:{d.submission or d.job} ({d.entrypoint[:60]})" for d in rows if not d.ended)
    shown = f"there run {running}" if running else "no job runs on this cluster"
    if chosen and chosen[0].ended:
        raise UsageError(f"job {asked} has ended", shown)
    if not asked and chosen:
        raise UsageError("several jobs run on this cluster", f"{shown}: name one")
    raise UsageError(f"there is no job {asked}" if asked else "there is no job to attach to", shown)


# -- what it consists of -------------------------------------------------------------------------


def survey(ray: Any, stubs: Stubs, driver: Driver) -> dict[str, Any]:
    """The job now, as ray.json has it but for what needs two moments."""
    gaps: list[str] = []
    nodes = _nodes(ray)
    rows = stubs.ask("ActorInfo", "GetAllActorInfo").actor_table_data
    actors = [_actor(row) for row in rows if row.job_id.hex() == driver.job]
    answer = stubs.ask("TaskInfo", "GetTaskEvents", limit=MOST_TASKS, filters=_of_job(stubs, driver.job))
    attempts = sorted(map(_task, answer.events_by_task), key=lambda task: int(task["attempt"]))
    tasks = list({task["id"]: task for task in attempts}.values())
    mine = [row for row in rows if row.job_id.hex() == driver.job]
    processes = _processes(ray, driver, mine, gaps)
    return {
        "id": driver.job,
        "entrypoint": driver.entrypoint,
        "nodes": nodes,
        "actors": actors,
        "rivals": _rivals(stubs, rows, driver.job),
        "tasks": tasks,
        "processes": processes,
        "gaps": gaps,
        "lost_tasks": int(answer.num_status_task_events_dropped + answer.num_truncated),
        "taken_ms": time.time() * 1000,
    }


def moved_between(before: Mapping[str, Any], after: Mapping[str, Any], since_ms: float) -> list[str]:
    """The ids of calls that were made, begun or ended between two surveys, and since that moment: nodes may take long to begin."""
    known = {task["id"]: (task["state"], task["attempt"]) for task in before["tasks"]}
    return [
        task["id"]
        for task in after["tasks"]
        if known.get(task["id"]) != (task["state"], task["attempt"])
        and max(task[key] or 0.0 for key in ("created_ms", "started_ms", "ended_ms")) >= since_ms
    ]


def _rivals(stubs: Stubs, rows: Iterable[Any], job: str) -> list[dict[str, Any]]:
    """Living actors of other jobs, each with what it holds."""
    by_job = {d.job: d for d in drivers(stubs, mine="")}
    living = [(row.job_id.hex(), _actor(row)) for row in rows if row.job_id.hex() != job]
    return [
        {"job": other, "entrypoint": by_job[other].entrypoint if other in by_job else ""}
        | {key: actor[key] for key in ("cls", "name", "node", "needs")}
        for other, actor in living
        if actor["state"] == "ALIVE" and actor["needs"]
    ]


def _of_job(stubs: Stubs, job: str) -> Any:
    filters = stubs.gcs.GetTaskEventsRequest.Filters()
    filters.job_filters.add(job_id=bytes.fromhex(job), predicate=stubs.gcs.FilterPredicate.EQUAL)
    return filters


def _nodes(ray: Any) -> list[dict[str, Any]]:
    free = ray._private.state.available_resources_per_node()
    return [
        {
            "id": node["NodeID"],
            "host": node["NodeManagerHostname"],
            "address": node["NodeManagerAddress"],
            "alive": node["Alive"],
            "resources": _plain(node["Resources"]),
            "available": _plain(free.get(node["NodeID"], {})),
        }
        for node in ray.nodes()
    ]


def _plain(resources: Mapping[str, float]) -> dict[str, float]:
    """Without those by which Ray names nodes, and the bundles of placement groups."""
    return {k: float(v) for k, v in resources.items() if not k.startswith("node:") and "_group_" not in k}


def _actor(row: Any) -> dict[str, Any]:
    from ray.core.generated.gcs_pb2 import ActorTableData

    return {
        "id": row.actor_id.hex(),
        "cls": row.class_name,
        "name": row.name,
        "state": ActorTableData.ActorState.Name(row.state),
        "pid": row.pid,
        "node": row.address.node_id.hex(),
        "restarts": row.num_restarts,
        "death": _death(row),
        "needs": _plain(dict(row.required_resources)),
        "owner": row.owner_address.worker_id.hex(),
    }


def _death(row: Any) -> str:
    """The cause as Ray words it, first line."""
    if not row.HasField("death_cause"):
        return ""
    kind = row.death_cause.WhichOneof("context") or ""
    context = getattr(row.death_cause, kind) if kind else None
    words = getattr(context, "error_message", "") or getattr(context, "formatted_exception_string", "")
    return str(words).strip()[:600]


def _task(row: Any) -> dict[str, Any]:
    info, updates = row.task_info, row.state_updates
    moments = {int(state): ns / 1e6 for state, ns in updates.state_ts_ns.items()}
    reached = max((number for number in moments if number < len(STATES)), default=0)
    from ray.core.generated.common_pb2 import TaskType

    return {
        "id": row.task_id.hex(),
        "name": info.func_or_class_name or info.name,
        "kind": TaskType.Name(info.type),
        "state": STATES[reached],
        "actor": _known(info.actor_id.hex()),
        "parent": info.parent_task_id.hex(),
        "worker": updates.worker_id.hex(),
        "pid": updates.worker_pid,
        "attempt": row.attempt_number,
        "needs": _plain(dict(info.required_resources)),
        "created_ms": moments.get(1),
        "started_ms": moments.get(8),
        "ended_ms": moments.get(11) or moments.get(12),
        "error": updates.error_info.error_message[:300] if updates.HasField("error_info") else "",
    }


def _known(identity: str) -> str:
    return "" if not identity or identity.startswith("f" * 16) else identity


def _processes(ray: Any, driver: Driver, actors: list[Any], gaps: list[str]) -> list[dict[str, Any]]:
    """The driver first, then the workers of its job on each node, as raylets list them; of one that is silent, its actors."""
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import node_manager_pb2, node_manager_pb2_grpc

    found = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        channel = init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")
        stub = node_manager_pb2_grpc.NodeManagerServiceStub(channel)
        try:
            answer = stub.GetObjectsInfo(node_manager_pb2.GetObjectsInfoRequest(), timeout=ANSWER_S)
        except Exception as error:
            gaps.append(f"{node['NodeManagerHostname']}: its raylet did not answer ({type(error).__name__})")
            found += _by_actors(node["NodeID"], driver, actors)
            continue
        for row in answer.core_workers_stats:
            if row.job_id.hex() == driver.job:
                found.append(_process(row, node["NodeID"], driver))
    found.sort(key=lambda row: (not row["driver"], row["node"], row["pid"]))
    return [{"number": number, **row} for number, row in enumerate(found)]


def _by_actors(node: str, driver: Driver, actors: list[Any]) -> list[dict[str, Any]]:
    """The processes of a node that the control store knows by itself: without tasks' workers."""
    found = [
        {"pid": row.pid, "node": node, "worker": row.address.worker_id.hex(), "actor": row.actor_id.hex(),
         "driver": False, "port": row.address.port, "queued": 0}
        for row in actors
        if row.address.node_id.hex() == node and row.pid and _actor(row)["state"] == "ALIVE"
    ]  # fmt: skip
    if driver.node == node:
        found.append(
            {
                "pid": driver.pid,
                "node": node,
                "worker": driver.worker,
                "actor": "",
                "driver": True,
                "port": 0,
                "queued": 0,
            }
        )
    return found


def _process(row: Any, node: str, driver: Driver) -> dict[str, Any]:
    return {
        "pid": row.pid,
        "node": node,
        "worker": row.worker_id.hex(),
        "actor": _known(row.actor_id.hex()),
        "driver": row.worker_id.hex() == driver.worker or row.pid == driver.pid,
        "port": row.port,
        "queued": int(row.task_queue_length),
    }
