"""Hosts on one machine: namespaces with names, addresses, disks, processes and clocks of their own, on one switch.

Nothing of it is seen from outside, so that two test runs never meet; and when the test ends, or is killed, the
kernel ends all of it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from support.cluster.switch import Switch, UnsupportedByKernel
from support.jobs import BIN, GIVE_UP_S, wait_until

ROOT = Path(__file__).resolve().parents[3]
INIT = Path(__file__).with_name("host_init.py")
TOOLS = ("ip", "tc", "nft", "unshare", "nsenter", "mount")
SEPARATE = ("--mount", "--uts", "--ipc", "--net", "--pid", "--time")
DISK = Path("/mnt")  # of each host, seen by no other
NETWORK = "10.77.0"
ELSEWHERE = "run as root by .ci/run, on Debian with iproute2 and nftables"
# Two machines were never started at the same moment: their monotonic clocks have nothing in common.
UPTIME_APART_S = 86_400


@functools.cache
def unavailable() -> str | None:
    """Why there can be no hosts here, and who has them; None where there can."""
    if os.geteuid() != 0:
        return f"network namespaces need root; {ELSEWHERE}"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"{missing[0]} is not installed; {ELSEWHERE}"
    tried = subprocess.run(
        ["unshare", *SEPARATE, "--fork", "ip", "link", "add", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"no namespaces here: {tried.stderr.strip()}; {ELSEWHERE}" if tried.returncode else None


@dataclass(kw_only=True)
class Host:
    """One of them. `start` and `run` are a shell on it."""

    name: str
    address: str
    port: str  # of the switch, where its cable ends
    pid: int  # of its first process, as seen from outside
    switch: Switch
    env: dict[str, str] = field(default_factory=dict)  # for whatever is started on it

    def behind(self, cwd: Path | str = "/") -> list[str]:
        """Before a command line: runs it here."""
        return ["nsenter", "--target", str(self.pid), *SEPARATE, "env", "-C", str(cwd)]

    def start(
        self,
        *command: str | Path,
        cwd: Path | str = "/",
        env: Mapping[str, str] | None = None,
        stdout: int | IO[Any] = subprocess.PIPE,
        stderr: int | IO[Any] = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """The command, begun; `send` gives it signals, which nsenter would keep."""
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        fixed = {"PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        return subprocess.Popen(
            [*self.behind(cwd), *map(str, command)],
            env={**os.environ, **fixed, **self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )

    def run(
        self,
        *command: str | Path,
        cwd: Path | str = "/",
        env: Mapping[str, str] | None = None,
        seconds: float = GIVE_UP_S,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """The command, finished."""
        started = self.start(*command, cwd=cwd, env=env)
        try:
            stdout, stderr = started.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            send(started, signal.SIGKILL)
            stdout, stderr = started.communicate()
            raise AssertionError(f"{command} on {self.name}: {seconds:g} s\n{stdout}{stderr}") from None
        if check and started.returncode:
            raise AssertionError(f"{command} on {self.name}: {started.returncode}\n{stdout}{stderr}")
        return subprocess.CompletedProcess(started.args, started.returncode, stdout, stderr)

    def path(self, path: Path | str) -> Path:
        """A path of this host, for who stands outside."""
        return Path(f"/proc/{self.pid}/root") / str(path).lstrip("/")

    def processes(self) -> dict[int, str]:
        """All that runs on it, by pid as seen from outside; zombies run no more."""
        mine = namespace(self.pid)
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != self.pid and namespace(folder.name) == mine:
                with contextlib.suppress(OSError):
                    if (folder / "stat").read_text().rpartition(") ")[2][:1] != "Z":
                        line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                        found[int(folder.name)] = line
        return found

    # -- what befalls hosts -----------------------------------------------------------------------

    def unplug(self) -> None:
        """The cable is pulled at the switch: nothing arrives, and nobody says so."""
        self.switch.ip("link", "set", self.port, "down")

    def plug(self) -> None:
        """The cable is back."""
        self.switch.ip("link", "set", self.port, "up")

    def throttle(self, rate: str) -> None:
        """What goes to it passes at `rate` at most, as tc spells it: 1mbit."""
        shape = ("tbf", "rate", rate, "burst", "32kb", "latency", "400ms")
        self.switch.run("tc", "qdisc", "replace", "dev", self.port, "root", *shape)

    def netem(self, *words: str) -> None:
        """What goes to it is delayed or damaged, in tc's words: delay 50ms. UnsupportedByKernel where there is no netem."""
        try:
            self.switch.run("tc", "qdisc", "replace", "dev", self.port, "root", "netem", *words)
        except AssertionError as error:
            if "qdisc kind is unknown" in str(error):
                raise UnsupportedByKernel("this kernel has no sch_netem") from None
            raise

    def lose(self, percent: int) -> None:
        """So much of what comes to it is lost."""
        self.run("nft", "add", "table", "inet", "faults")
        hook = "{ type filter hook input priority 0; }"
        self.run("nft", "add", "chain", "inet", "faults", "arriving", hook)
        chance = f"numgen random mod 100 < {percent}" if percent < 100 else ""
        rule = f'iifname "eth0" {chance} drop'
        self.run("nft", "add", "rule", "inet", "faults", "arriving", *rule.split())

    def heal(self) -> None:
        """No more loss, delay or throttle."""
        self.switch.run("tc", "qdisc", "del", "dev", self.port, "root", check=False)
        self.run("nft", "delete", "table", "inet", "faults", check=False)

    def fill_disk(self, leave_kib: int = 0) -> None:
        """Its own disk is full, but for `leave_kib`."""
        with self.path(DISK / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 65536)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            file.truncate(max(file.tell() - leave_kib * 1024, 0))

    def empty_disk(self) -> None:
        """There is room again."""
        self.path(DISK / "filler").unlink()


class Hosts(Sequence[Host]):
    """Some of them, each able to reach the others by name; `shared` are directories that all have, as by NFS."""

    def __init__(self, names: Sequence[str], *shared: Path, disk_mib: int = 256) -> None:
        self.shared = shared
        self._list: list[Host] = []
        self._starters: list[subprocess.Popen[str]] = []
        self.switch = Switch()
        try:
            self._bring_up(names, disk_mib)
        except BaseException:
            self.close()
            raise

    def _bring_up(self, names: Sequence[str], disk_mib: int) -> None:
        addresses = {name: f"{NETWORK}.{10 + number}" for number, name in enumerate(names)}
        etc_hosts = self.shared[0] / ".hosts"
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
        etc_hosts.write_text("\n".join(lines) + "\n")
        everywhere = sorted({*map(str, self.shared), str(ROOT), sys.prefix, sys.base_prefix})
        for number, name in enumerate(names):
            about = {"name": name, "disk_mib": disk_mib, "shared": everywhere, "names": str(etc_hosts)}
            self._starters.append(_start_host(about, uptime_s=UPTIME_APART_S * (number + 1)))
        for number, (name, starter) in enumerate(zip(names, self._starters, strict=True)):
            assert starter.stdout is not None
            assert starter.stdout.readline() == "ready\n", f"{name} did not come up"
            pid, port = _only_child(starter.pid), f"port{number}"
            self.switch.connect(pid, port)
            host = Host(name=name, address=addresses[name], port=port, pid=pid, switch=self.switch)
            up = f"ip addr add {host.address}/24 dev eth0; ip link set eth0 up; ip link set lo up"
            host.run("sh", "-ec", up)
            self._list.append(host)

    def __getitem__(self, key: Any) -> Any:
        return self._list[key]

    def __len__(self) -> int:
        return len(self._list)

    def called(self, name: str) -> Host:
        return next(host for host in self._list if host.name == name)

    def left(self) -> dict[str, str]:
        """What runs on any of them."""
        return {f"{h.name}:{pid}": line for h in self._list for pid, line in h.processes().items()}

    def close(self) -> None:
        """Ends all of it."""
        for starter in self._starters:
            assert starter.stdin is not None
            starter.stdin.close()
        for starter in self._starters:
            starter.wait(10)
        self.switch.close()


def _start_host(about: dict[str, Any], *, uptime_s: int) -> subprocess.Popen[str]:
    clocks = ("--monotonic", str(uptime_s), "--boottime", str(uptime_s))
    return subprocess.Popen(
        ["unshare", *SEPARATE, *clocks, "--fork", "--kill-child", "--mount-proc", "--propagation", "private",
         sys.executable, str(INIT), json.dumps(about)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )  # fmt: skip


def send(started: subprocess.Popen[str], number: int) -> None:
    """A signal for the command that `Host.start` began."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(_only_child(started.pid), number)


def _only_child(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    wait_until(lambda: children.read_text().split(), "its child")
    return int(children.read_text().split()[0])


def namespace(pid: int | str) -> str | None:
    """The PID namespace that the process lives in."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None
