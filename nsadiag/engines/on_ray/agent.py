"""The actor on each node of a job: it starts a process there, hands it work, and ends it. Imports no ray."""

from __future__ import annotations

import contextlib
import json
import platform
import queue
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STOP_S = 30.0  # for a process to end its ranks and to write what it knows
CHUNK_BYTES = 1 << 20


class Agent:
    """Its methods run side by side: `run` lasts as long as a job, and the others answer meanwhile."""

    def __init__(self, module: str, cwd: str | None, address: str) -> None:
        """`module` runs jobs from its stdin (commands.batch.serving), in `cwd`, or where the runtime environment has us."""
        self._address = address
        self._scratch: Path | None = None
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd
        )
        self._answers: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._answers.put(int(line))
        self._ended.set()
        self._answers.put(None)

    def place(self) -> dict[str, Any]:
        """Host and free port of this node; an answer shows that the node is alive."""
        with socket.socket() as probe:
            probe.bind((self._address, 0))
            return {"host": platform.node(), "address": self._address, "port": probe.getsockname()[1]}

    def run(self, job: Mapping[str, Any]) -> int:
        """The exit code of one job. Raises RuntimeError where its process was killed."""
        job = job if "log" in job else {**job, "log": self.log()}
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        code = self._answers.get()
        if code is None:
            raise RuntimeError(f"the agent on {platform.node()} was killed, or could not be started")
        return code

    def stop(self) -> bool:
        """Ends the process, with what it runs; whether it has ended."""
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        return self._ended.wait(STOP_S)

    def log(self) -> str:
        """A file of this agent's own, for the output of a job that has none in a directory that all share."""
        return str(self._own("log"))

    def _own(self, name: str) -> Path:
        with self._lock:  # two methods may ask at the same moment
            self._scratch = self._scratch or Path(tempfile.mkdtemp(prefix="nsadiag-"))
        return self._scratch / name

    def clean(self) -> None:
        """Removes what `log` and `packed` named."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def packed(self, directory: str) -> str | None:
        """A tar archive of a directory here; None if there is none. `read` reads it."""
        if not Path(directory).is_dir():
            return None
        path = self._own("packed.tar")
        with tarfile.open(path, "w") as archive:
            archive.add(directory, arcname=".")
        return str(path)

    def read(self, path: str, offset: int) -> bytes:
        """The next part of a file here, beyond `offset`; empty at its end."""
        with contextlib.suppress(OSError), Path(path).open("rb") as file:
            file.seek(offset)
            return file.read(CHUNK_BYTES)
        return b""
