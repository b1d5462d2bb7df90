"""What the hosts' cables end in (`hosts.py`)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.jobs import wait_until


class UnsupportedByKernel(Exception):
    """A fault that this kernel cannot inject."""


class Switch:
    """What the hosts' cables end in: a bridge, in a network namespace that has nothing else."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        outside = Path("/proc/self/ns/net").readlink()
        wait_until(lambda: Path(f"/proc/{self._holder.pid}/ns/net").readlink() != outside, "the switch")
        self.ip("link", "add", "switch", "type", "bridge")
        self.ip("link", "set", "switch", "up")

    def run(self, *command: str, check: bool = True) -> None:
        behind = ["nsenter", "--target", str(self._holder.pid), "--net"]
        done = subprocess.run([*behind, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, f"{' '.join(command)}: {done.stderr}"

    def ip(self, *words: str) -> None:
        self.run("ip", *words)

    def connect(self, pid: int, port: str) -> None:
        """A cable from the port to eth0 of the host whose process that is."""
        self.ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self.ip("link", "set", port, "master", "switch")
        self.ip("link", "set", port, "up")

    def close(self) -> None:
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        self._holder.wait(10)
