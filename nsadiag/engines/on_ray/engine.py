"""Engine `ray`: each cell is a job on a crew of actors, which is kept for the next cell that needs the same nodes."""

from __future__ import annotations

import itertools
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nsadiag.engines.batch import BatchEngine, BatchOptions, JobState, Task, seat
from nsadiag.engines.on_ray.cluster import Shape, connect, start_directory, why_waiting
from nsadiag.engines.on_ray.crew import Crew

WHY_S = 1.0
TICK_S = 0.05


@dataclass(kw_only=True, eq=False)
class _Job:
    """A task, and what is known of it."""

    id: str
    task: Task
    log: Path
    crew: Crew | None = None
    ended: str | None = None  # why, where it has
    trouble: str = ""


class Ray(BatchEngine):
    """Made of the command line's options; its jobs end with this process, whichever way that ends."""

    ask_s = 0.2  # it is asked within this process

    def __init__(self, options: BatchOptions) -> None:
        options.only("ray", "gpus_per_node", "address", "runtime_env")
        self._options = options
        self._ray = None if options.dry_run else connect(options.address, options.runtime_env)
        self._cwd = start_directory(options.runtime_env)
        self._name = f"ray-{secrets.token_hex(4)}"
        self._jobs: dict[str, _Job] = {}
        self._waiting: list[_Job] = []
        self._crews: list[Crew] = []
        self._leaving: list[Crew] = []
        self._told: dict[Shape, tuple[float, str]] = {}  # when Ray was asked why it waits, and the answer

    def plan(self, tasks: Sequence[Task], logs: Path) -> str:
        """The placement groups, each with the cells that it is for."""
        groups = []
        for shape, group in itertools.groupby(tasks, key=self._shape):
            members = list(group)
            cells = "".join(f"  {task.name}\n" for task in members)
            bundles = ", ".join(str(shape.bundle()) for _ in range(shape.nodes))
            groups.append(f"placement group STRICT_SPREAD [{bundles}], {len(members)} cells:\n{cells}")
        return "\n".join(groups)

    def submit(self, tasks: Sequence[Task], logs: Path) -> list[str]:
        """They wait here, for crews that are asked for one after the other."""
        first = len(self._jobs)
        fresh = [
            _Job(id=f"{self._name}_{number}", task=task, log=logs / f"{self._name}_{number}")
            for number, task in enumerate(tasks, first)
        ]
        self._jobs |= {job.id: job for job in fresh}
        self._waiting += fresh
        return [job.id for job in fresh]

    def states(self, ids: Sequence[str]) -> dict[str, JobState]:
        """One of an earlier driver has ended with it."""
        self._turn()
        return {job_id: self._state(self._jobs.get(job_id)) for job_id in ids}

    def cancel(self, ids: Sequence[str]) -> None:
        """Their agents end their ranks and write what they know."""
        for job in (self._jobs[job_id] for job_id in ids if job_id in self._jobs):
            if job in self._waiting:
                self._waiting.remove(job)
            if job.crew is not None and job.ended is None:
                self._dismiss(job.crew)
            job.ended = job.ended or "it was cancelled"

    def epitaph(self, job_id: str, logs: Path) -> list[tuple[str, Path | None]]:
        job = self._jobs[job_id]
        ends = []
        for path in sorted(job.log.parent.glob(f"{job.log.name}-*.log")):
            lines = path.read_text(errors="replace").strip().splitlines()[-3:]
            if lines:
                ends.append((f"its output ends with: {' / '.join(line.strip() for line in lines)}", path))
        return [(f"{job_id}: {job.ended}", None), *ends]

    def close(self) -> None:
        """No actor, placement group or process is left."""
        for crew in list(self._crews):
            self._dismiss(crew)
        while self._leaving:
            self._see_off()
            time.sleep(TICK_S)
        if self._ray is not None:
            self._ray.shutdown()

    # -- jobs and crews -----------------------------------------------------------------------------

    def _turn(self) -> None:
        """One step of everything that may have gone on."""
        for crew in self._crews:
            crew.look()
        for job in self._jobs.values():
            if job.crew is not None and job.ended is None and job.crew.state != "busy":
                self._note_end(job, job.crew)
        for crew in [c for c in self._crews if c.state == "broken" or self._is_headless(c)]:
            self._dismiss(crew)
        for job in list(self._waiting):
            shape = self._shape(job.task)
            free = next((c for c in self._crews if c.state == "free" and c.shape == shape), None)
            if free is not None:
                self._start(job, free)
        wanted = {self._shape(job.task) for job in self._waiting}
        for crew in [c for c in self._crews if c.state != "busy" and c.shape not in wanted]:
            self._dismiss(crew)
        self._ask_for_more()
        self._see_off()

    def _ask_for_more(self) -> None:
        """Request a crew for each shape that waits and has none pending, so that they grow as the cluster has room.

        One that is placed but still comes up does not hold the next back. Never more crews than jobs that wait for them,
        and never more than the user allows.
        """
        waiting = Counter(self._shape(job.task) for job in self._waiting)
        module = {self._shape(job.task): job.task.module for job in reversed(self._waiting)}
        for shape in waiting:
            if self._options.at_once and len(self._crews) >= self._options.at_once:
                return
            awaited = [c.state for c in self._crews if c.shape == shape and c.state in ("asked", "coming")]
            if "asked" not in awaited and len(awaited) < waiting[shape]:
                self._crews.append(Crew(self._ray, shape, module=module[shape], cwd=self._cwd))

    def _start(self, job: _Job, crew: Crew) -> None:
        self._waiting.remove(job)
        job.crew = crew
        nodes, head = crew.shape.nodes, crew.places[0]["address"]
        crew.start(
            [
                {
                    "arguments": list(job.task.arguments),
                    "env": seat(job_id=job.id, node_rank=node, nnodes=nodes, master_addr=head),
                    "log": f"{job.log.resolve()}-{node}.log",  # agents may be in another directory
                }
                for node in range(nodes)
            ]
        )

    def _is_headless(self, crew: Crew) -> bool:
        """Without node 0 nobody judges the job: the others need not wait for it."""
        return crew.state == "busy" and 0 in crew.lost

    def _note_end(self, job: _Job, crew: Crew) -> None:
        """Record the reason for a job's end, and report a lost node at once."""
        codes = ", ".join(str(code) for _, code in sorted(crew.codes.items()))
        job.trouble = crew.trouble(job.task.ranks_per_node) if crew.lost else ""
        job.ended = job.trouble or f"its agents ended with {codes or 'nothing said'}"

    def _dismiss(self, crew: Crew) -> None:
        for job in self._jobs.values():
            if job.crew is crew and job.ended is None:
                self._note_end(job, crew)
        self._crews.remove(crew)
        crew.leave()
        self._leaving.append(crew)

    def _see_off(self) -> None:
        for crew in [crew for crew in self._leaving if crew.has_left()]:
            self._leaving.remove(crew)
            crew.remove()

    # -- what is said of them -----------------------------------------------------------------------

    def _shape(self, task: Task) -> Shape:
        return Shape(task.nodes, task.ranks_per_node, self._options.gpus_per_node or task.gpus_per_node)

    def _state(self, job: _Job | None) -> JobState:
        if job is None:
            return JobState(phase="ended")
        if job.ended is not None:
            return JobState(phase="ended", words=job.ended, trouble=job.trouble)
        if job.crew is None:
            return JobState(phase="pending", words=self._why(self._shape(job.task)))
        on = ", ".join(place["host"] for place in job.crew.places)
        return JobState(phase="running", words=f"on {on}", trouble=job.crew.trouble(job.task.ranks_per_node))

    def _why(self, shape: Shape) -> str:
        if not any(crew.state == "asked" and crew.shape == shape for crew in self._crews):
            return ""
        asked, words = self._told.get(shape, (-WHY_S, ""))
        if time.monotonic() - asked > WHY_S:
            words = why_waiting(self._ray, shape)
            self._told[shape] = time.monotonic(), words
        return words
