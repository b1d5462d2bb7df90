"""Files of a job's nodes, copied to the driver: output while it runs, and the run directory where no disk is shared."""

from __future__ import annotations

import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

from nsadiag.engines.on_ray.crew import Crew

LATE_S = 5.0  # for the output of a node that may be gone
TICK_S = 0.02


class Output:
    """Shows what a crew's agents print: node 0's lines as they are, those of others behind their host's name."""

    def __init__(self, ray: Any, crew: Crew, stream: TextIO) -> None:
        self._ray, self._crew, self._stream = ray, crew, stream
        self._asked: dict[int, Any] = {}  # node to what it was asked for
        self._paths: dict[int, str] = {}
        self._seen: dict[int, int] = {}  # bytes
        self._begun: dict[int, bytes] = {}  # lines that have no end yet
        self._empty: set[int] = set()  # nodes whose last part was the end

    def look(self) -> None:
        """Shows what has come, and asks for more."""
        for index, agent in enumerate(self._crew.agents):
            asked = self._asked.get(index)
            if asked is not None and not self._ray.wait([asked], timeout=0)[0]:
                continue
            if asked is not None:
                self._take(index, asked)
            path = self._paths.get(index)
            self._asked[index] = (
                agent.log.remote() if path is None else agent.read.remote(path, self._seen[index])
            )

    def _take(self, index: int, asked: Any) -> None:
        try:
            found = self._ray.get(asked)
        except Exception:  # its node is lost, which others say
            self._empty.add(index)
            return
        if isinstance(found, str):
            self._paths[index], self._seen[index], self._begun[index] = found, 0, b""
            return
        self._seen[index] += len(found)
        self._empty = self._empty - {index} if found else self._empty | {index}
        *lines, self._begun[index] = (self._begun[index] + found).split(b"\n")
        self._show(index, lines)

    def _show(self, index: int, lines: list[bytes]) -> None:
        mark = "" if index == 0 else f"{self._crew.places[index]['host']}| "
        for line in lines:
            print(f"{mark}{line.decode(errors='replace')}", file=self._stream)
        self._stream.flush()

    def finish(self) -> None:
        """The rest of it, as far as nodes still answer."""
        self._empty.clear()
        deadline = time.monotonic() + LATE_S
        while len(self._empty) < len(self._crew.agents) and time.monotonic() < deadline:
            self.look()
            time.sleep(TICK_S)
        for index, rest in self._begun.items():
            if rest:
                self._show(index, [rest])


def fetched(ray: Any, agent: Any, directory: Path) -> bool:
    """Brings a directory of that path from the agent's node; whether there was one."""
    path = ray.get(agent.packed.remote(str(directory.resolve())))
    if path is None:
        return False
    with tempfile.TemporaryFile() as file:
        while part := ray.get(agent.read.remote(path, file.tell())):
            file.write(part)
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            kept = [member for member in archive if member.isdir() or member.isreg()]
            archive.extractall(directory, kept, filter="data")
    return True
