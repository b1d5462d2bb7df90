"""Ranks of a job of a test, without a launcher and with nobody watching: for what the probes write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.jobs import GIVE_UP_S, Jobs
from support.processes.warm_python import WarmProcess, WarmPython

import nsadiag
from nsadiag.evidence.layout import RankDir, RunDir
from nsadiag.evidence.ring.reader import Recording, read_blackbox

BOOTSTRAP = Path(nsadiag.__file__).parent / "worker" / "bootstrap"


class Ranks:
    """Ranks with nobody watching, as a warm launcher would start them; `cold` ones as another does, with our bootstrap."""

    def __init__(self, jobs: Jobs, warm_python: WarmPython) -> None:
        self.jobs = jobs
        self.warm_python = warm_python
        self.run = RunDir(path=jobs.directory / "run")
        self.started: list[subprocess.Popen[str] | WarmProcess] = []

    def start(
        self, job: str, *, size: int = 1, probes: str = "full", cold: bool = False, **more: str
    ) -> None:
        self.run.path.mkdir(exist_ok=True)
        (self.jobs.directory / "job.py").write_text(job)
        for rank in range(size):
            ours = {
                "PYTHONPATH": str(BOOTSTRAP),
                "NSADIAG_RUN_DIR": str(self.run.path),
                "NSADIAG_PROBES": probes,
            }
            environment = self.jobs.environment(
                {**ours, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), **more}
            )
            self.started.append(self._cold(environment) if cold else self._warm(environment))

    def _cold(self, environment: dict[str, str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "job.py"],
            cwd=self.jobs.directory, env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def _warm(self, environment: dict[str, str]) -> WarmProcess:
        directory = self.jobs.directory
        return self.warm_python.start(directory / "job.py", cwd=directory, env=environment, rank=True)

    def stuck(self, word: str = "stuck") -> None:
        """Returns once a rank has said the word."""
        while self.jobs.signals.wait() != word:
            pass

    def end(self) -> list[str]:
        """What each printed, once all have ended well."""
        texts = []
        for process in self.started:
            stdout, stderr = process.communicate(timeout=GIVE_UP_S)
            assert process.returncode == 0, stderr
            texts.append(stdout)
        return texts

    def directory(self, rank: int = 0) -> RankDir:
        return self.run.rank(rank)

    def recording(self, rank: int = 0) -> Recording:
        directory = self.directory(rank)
        return read_blackbox(directory.blackbox)

    def gaps(self, rank: int = 0) -> str:
        gaps = self.directory(rank).gaps
        return gaps.read_text() if gaps.exists() else ""

    def close(self) -> None:
        # Not their output to the end: their children may hold it, and end only with the `jobs`.
        for process in self.started:
            if isinstance(process, WarmProcess):
                process.close()
                continue
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
