"""An armed environment of a test's own, the jobs that run in it, and who is notified."""

from __future__ import annotations

import json
import site
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.jobs import Jobs, wait_until

ROOT = Path(__file__).resolve().parents[3]
# Steps on; what is to happen in it is typed behind the script's name.
TRAIN = """
import os, signal, sys, threading, time
import torch
import torch.distributed as dist

what = sys.argv[1] if len(sys.argv) > 1 else "healthy"
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def step():
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()

for _ in range(8):
    step()
"""
END = """
for _ in range(4):
    step()
total = sum(p.sum() for p in model.parameters()).item()
os.write(1, f"rank {rank} ends with {total!r}\\n".encode())
dist.barrier()
dist.destroy_process_group()
"""


class Armed:
    """A virtual environment that finds this one's packages, with a runtime folder and a folder of bundles of its own."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs, self.directory = jobs, jobs.directory
        self.venv, self.home, self.out = (self.directory / name for name in ("venv", "home", "out"))
        venv.EnvBuilder(symlinks=True, with_pip=False).create(self.venv)
        self.python = self.venv / "bin" / "python"
        folders = [p for p in sys.path if p.endswith("-packages")] + site.getsitepackages()
        (self.site / "base.pth").write_text("\n".join(dict.fromkeys(folders)) + "\n")
        self.notified_at = self.directory / "notified"
        hook = self.directory / "hook"
        hook.write_text(f"#!/bin/sh\ncat >> {self.notified_at}; echo >> {self.notified_at}\n")
        hook.chmod(0o755)
        self.hook = str(hook)

    @property
    def site(self) -> Path:
        return next((self.venv / "lib").glob("python3*/site-packages"))

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        own = {"NSADIAG_RUNTIME_DIR": str(self.home), "XDG_STATE_HOME": str(self.directory / "state")}
        return self._jobs.environment({**own, **(more or {})})

    def nsadiag(self, *words: str, behind: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*behind, sys.executable, "-m", "nsadiag", *words],
            cwd=ROOT,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def arm(self, *options: str) -> None:
        """With bundles and messages where the test finds them."""
        line = ("arm", "--python", str(self.python), "--out", str(self.out), "--notify", self.hook, *options)
        done = self.nsadiag(*line)
        assert done.returncode == 0, done.stderr

    def disarm(self) -> None:
        done = self.nsadiag("disarm", "--python", str(self.python))
        assert done.returncode == 0, done.stderr

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.nsadiag("arm", "--status", "--json", "--python", str(self.python)).stdout
        )
        return found

    def script(self, middle: str = "", name: str = "job.py", end: str = END) -> Path:
        """A training, with what is to happen to it after its first steps."""
        path = self.directory / name
        path.write_text(TRAIN + middle + end)
        return path

    def start(
        self,
        script: Path,
        *words: str,
        env: Mapping[str, str] | None = None,
        options: tuple[str, ...] = (),
        behind: tuple[str, ...] = (),
    ) -> subprocess.Popen[str]:
        """Two ranks under torchrun, which may stand behind another command."""
        launcher = [
            *behind,
            str(self.python),
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
        ]
        return subprocess.Popen(
            [*launcher, *options, str(script), *words],
            cwd=self.directory,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finished(self, job: subprocess.Popen[str]) -> tuple[int, list[str]]:
        """Exit code, and what the ranks said at their end."""
        said = job.communicate(timeout=300)[0]
        return job.returncode, sorted(line for line in said.splitlines() if line.startswith("rank "))

    def notified(self) -> list[dict[str, Any]]:
        if not self.notified_at.exists():
            return []
        return [json.loads(line) for line in self.notified_at.read_text().splitlines() if line.strip()]

    def told(self, event: str) -> dict[str, Any]:
        """The message of that kind, as soon as it has come."""
        found: list[dict[str, Any]] = []

        def has_come() -> bool:
            found[:] = [message for message in self.notified() if message["event"] == event]
            return bool(found)

        wait_until(has_come, f"a message: {event}")
        return found[0]

    def bundles(self) -> list[Path]:
        return sorted(p for p in self.out.glob("*") if p.is_dir() and not p.is_symlink())

    def watcher(self) -> int | None:
        """Its pid."""
        return self.status()["watcher"]

    def wait_for_watcher(self) -> int:
        found: list[int] = []

        def is_there() -> bool:
            pid = self.watcher()
            found[:] = [pid] if pid else []
            return bool(found)

        wait_until(is_there, "a watcher")
        return found[0]


def tree(folder: Path) -> dict[str, str]:
    """Every file below it, with its content and mode; bytecode of others' packages aside."""
    return {
        str(
            path.relative_to(folder)
        ): f"{path.lstat().st_mode:o} {path.read_bytes() if path.is_file() else ''!r}"
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }
