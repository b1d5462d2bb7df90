"""A Ray cluster of its own on hosts: the head on the first, a raylet on each."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.cluster.hosts import Host
from support.jobs import BIN, wait_until

PORT = 6379
UP_S = 240  # seconds, on a machine that others use
SMALL = ("--object-store-memory", "80000000")
# Workers start when there is work for them; a node that died is noticed by its connection.
QUIETLY = {
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_usage_stats_enabled": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",  # on a machine that others use, nice workers come to nothing
}

HELD = """
import ray
ray.init(log_to_driver=False, logging_level="ERROR")
print(*(g["placement_group_id"] for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"))
# Detached ones are Ray Train's own: nothing of nsadiag's is.
print(*(name for name, a in ray._private.state.actors().items() if a["State"] != "DEAD" and not a["IsDetached"]))
"""


@functools.cache
def unavailable() -> str | None:
    """Why there is no Ray here; None where there is."""
    return None if importlib.util.find_spec("ray") else "ray is not installed: pip install 'nsadiag[ray]'"


class RayCluster:
    """Comes up when it is made, and ends with its hosts; `directory` gets the daemons' words."""

    def __init__(
        self,
        hosts: Sequence[Host],
        directory: Path,
        cpus: int = 2,
        resources: Mapping[str, float] | None = None,  # of each node
    ) -> None:
        self.head, self.nodes, self.directory, self._cpus = hosts[0], list(hosts), directory, cpus
        self._resources = json.dumps(dict(resources or {}))
        self.daemons: dict[str, subprocess.Popen[str]] = {}
        for host in hosts:
            host.env |= {**QUIETLY, "RAY_ADDRESS": f"{self.head.address}:{PORT}"}
        self._begin(self.head, "--head", "--port", str(PORT), "--include-dashboard", "false")
        wait_until(lambda: self._is_up(self.head), self.logs(), UP_S)
        for host in hosts[1:]:
            self.join(host)
        wait_until(lambda: all(map(self._is_up, hosts)), self.logs(), UP_S)

    def join(self, host: Host) -> None:
        """One more node, which may be up only later."""
        self._begin(host, "--address", f"{self.head.address}:{PORT}")

    def _begin(self, host: Host, *words: str) -> None:
        self._log(host).unlink(missing_ok=True)
        about = (
            "--node-ip-address",
            host.address,
            "--num-cpus",
            str(self._cpus),
            "--resources",
            self._resources,
            *SMALL,
        )
        with self._log(host).open("w") as log:
            self.daemons[host.name] = host.start(
                BIN / "ray",
                "start",
                "--block",
                "--disable-usage-stats",
                *about,
                *words,
                stdout=log,
                stderr=log,
            )

    def _log(self, host: Host) -> Path:
        return self.directory / f"ray-{host.name}.log"

    def _is_up(self, host: Host) -> bool:
        return "Ray runtime started" in self._log(host).read_text()

    def kill(self, host: Host) -> None:
        """Everything of Ray's on that host, and what it started: the machine fails."""
        for pid in host.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def left(self) -> list[str]:
        """What runs of nsadiag on any host."""
        return [line for host in self.nodes for line in host.processes().values() if "nsadiag" in line]

    def held(self) -> list[str]:
        """Placement groups and actors that are not gone, by Ray's own word."""
        return self.head.run(sys.executable, "-c", HELD).stdout.split()

    def logs(self) -> str:
        """For a test that failed."""
        return "\n".join(
            f"== {p.name}\n{p.read_text()[-2000:]}" for p in sorted(self.directory.glob("ray-*.log"))
        )
