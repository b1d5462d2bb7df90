"""A callback for Ray Train: a run that hangs fails, and the verdict is its error.

TorchTrainer(..., run_config=ray.train.RunConfig(callbacks=[NsadiagCallback()]))
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray.train.v2._internal.execution.callback import ReportCallback, WorkerGroupCallback
from ray.train.v2.api.exceptions import WorkerGroupError

from nsadiag.deadlines import programs
from nsadiag.evidence.layout import RunDir, make_private_dir, open_private, read_json
from nsadiag.evidence.records import Verdict

DOCUMENT = "ray.json"
LOOK_S = 600.0  # after which a look has failed
Suspicion = tuple[str, tuple[int, ...]]

logger = logging.getLogger(__name__)


class TrainingHungError(WorkerGroupError):  # type: ignore[misc]
    """A run of Ray Train that hangs: `worker_failures` has the guilty workers by their rank in it, `directory` the evidence."""

    def __init__(self, message: str, worker_failures: dict[int, Exception], directory: str = "") -> None:
        super().__init__(message, worker_failures)
        self.directory = directory

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._error_message, self.worker_failures, self.directory)


class NsadiagCallback(WorkerGroupCallback, ReportCallback):  # type: ignore[misc]
    """Has the job looked at, as by `nsadiag attach ray:JOB`, each time that no worker has reported for `silence` seconds.

    A proven hang that holds up workers of this run fails it with TrainingHungError; a suspected one does where a second look, as many seconds
    later, comes to the same. FailureConfig(max_failures=...) counts it. Looks that find no hang are made ever less often. `out` is where the
    evidence goes, on the node of the controller; a temporary directory without.
    """

    def __init__(self, *, silence: float = 600.0, out: str | Path | None = None) -> None:
        self._silence, self._out, self._number = silence, out, 0
        self._ranks: dict[tuple[str, int], int] = {}  # Train's, by node and pid
        self._look: subprocess.Popen[bytes] | None = None
        self._directory, self._began = Path(), 0.0
        self._suspected: Suspicion | None = None
        self._heard()

    # -- what Ray Train says ------------------------------------------------------------------------

    def after_worker_group_start(self, worker_group: Any) -> None:
        self._ranks = {
            (worker.metadata.node_id, worker.metadata.pid): worker.distributed_context.world_rank
            for worker in worker_group.get_workers()
        }
        self._heard()

    def after_report(self, training_report: Any, metrics: Any) -> None:
        self._heard()

    def before_worker_group_shutdown(self, worker_group: Any) -> None:
        self._ranks = {}
        self._give_up()

    def before_worker_group_abort(self, worker_group_context: Any) -> None:
        self._ranks = {}
        self._give_up()

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        """Some twice a second; nothing is waited for."""
        try:
            failure = self._turn()
        except Exception:  # the run is not to fail by who looks on
            logger.exception("nsadiag could not look at the run")
            self._later()
            return
        if failure is not None:
            raise failure

    # -- looks --------------------------------------------------------------------------------------

    def _heard(self) -> None:
        """All is well: the silence begins anew."""
        self._wait, self._suspected = self._silence, None
        self._next = time.monotonic() + self._wait
        self._give_up()

    def _later(self) -> None:
        self._wait *= 2
        self._next = time.monotonic() + self._wait

    def _give_up(self) -> None:
        if self._look is not None:
            programs.end(self._look)
            self._look = None

    def _turn(self) -> TrainingHungError | None:
        now = time.monotonic()
        if self._look is None:
            if self._ranks and now > self._next:
                self._begin()
            return None
        if self._look.poll() is None:
            if now - self._began > LOOK_S:
                self._give_up()
                self._later()
            return None
        self._look = None
        return self._judged()

    def _begin(self) -> None:
        context = ray.get_runtime_context()
        self._number += 1
        self._out = base = Path(self._out or tempfile.mkdtemp(prefix="nsadiag-train-"))
        make_private_dir(base)
        self._directory, self._began = base / f"look-{self._number}", time.monotonic()
        line = [sys.executable, "-m", "nsadiag", "attach", f"ray:{context.get_job_id()}", "--force"]
        with open_private(base / f"look-{self._number}.log", "wb") as log:
            self._look = subprocess.Popen(
                [*line, "--out", str(self._directory)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env={**os.environ, "RAY_ADDRESS": context.gcs_address},
            )  # fmt: skip

    def _judged(self) -> TrainingHungError | None:
        document = read_json(RunDir(path=self._directory).verdict, {})
        if not document:
            logger.warning("nsadiag came to no verdict: see %s.log", self._directory)
            self._later()
            return None
        verdict = Verdict.from_json(document)
        ranks = self._ranks_by_number()
        concerned = set(ranks) & {*verdict.guilty_ranks, *verdict.blocked_ranks}
        if verdict.outcome != "hung" or not concerned:
            self._suspected = None
            self._later()
            return None
        suspicion = (verdict.cls, verdict.guilty_ranks)
        if verdict.certainty != "proven" and self._suspected != suspicion:
            logger.warning("nsadiag suspects a hang: %s", verdict.summary)
            self._suspected, self._next = suspicion, time.monotonic() + self._silence
            return None
        return self._failure(verdict, ranks)

    def _ranks_by_number(self) -> dict[int, int]:
        """Train's ranks of this run, by their numbers in the verdict."""
        rows = read_json(self._directory / DOCUMENT, {}).get("processes", [])
        found = {row["number"]: self._ranks.get((row["node"], row["pid"])) for row in rows}
        return {number: rank for number, rank in found.items() if rank is not None}

    def _failure(self, verdict: Verdict, ranks: dict[int, int]) -> TrainingHungError:
        says = f"{verdict.certainty}: {verdict.summary}"
        if verdict.where is not None and verdict.where.code:
            says += f"\n  {verdict.where.file}:{verdict.where.line}: {verdict.where.code.strip()}"
        place = f"{self._directory} on {os.uname().nodename}"
        blamed: dict[int, Exception] = {
            ranks[n]: RuntimeError(verdict.summary) for n in verdict.guilty_ranks if n in ranks
        }
        return TrainingHungError(
            f"{verdict.cls} ({says})\nnsadiag's report is in {place}", blamed, str(self._directory)
        )


__all__ = ["NsadiagCallback", "TrainingHungError"]
