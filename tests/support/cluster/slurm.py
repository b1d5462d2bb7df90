"""A Slurm of its own on the hosts of a test: slurmctld on the first, a slurmd with fake GPUs on each of the others."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from support.cluster.hosts import Host, Hosts
from support.jobs import wait_until

DAEMONS = ("slurmctld", "slurmd", "munged", "sbatch")
GPUS = 2  # a node

# Without accounting, as many a cluster is: the controller forgets a job some minutes after its end.
CONF = """\
ClusterName=test
SlurmctldHost={head.name}({head.address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile=/mnt/slurmd.pid
SlurmdSpoolDir=/mnt/slurmd
StateSaveLocation={directory}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2
MpiDefault=none
ReturnToService=2
KillWait=3
SlurmdParameters=config_overrides
GresTypes=gpu
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={node.name} NodeAddr={node.address} Gres=gpu:{gpus} CPUs=4 CoresPerSocket=4 RealMemory=8000 State=UNKNOWN"


@functools.cache
def unavailable() -> str | None:
    """Why there is no Slurm here; None where there is."""
    missing = [daemon for daemon in DAEMONS if _where(daemon) is None]
    return f"{missing[0]} is not installed; .ci/run installs it where it is root" if missing else None


def _where(daemon: str) -> str | None:
    return shutil.which(daemon, path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")


class Slurm:
    """Comes up when it is made; it ends with its hosts, and `close` removes what it wrote."""

    def __init__(self, hosts: Hosts, directory: Path) -> None:
        self.head, self.nodes, self.directory = hosts[0], list(hosts[1:]), directory
        self.env = {"SLURM_CONF": str(directory / "slurm.conf")}
        for host in hosts:
            host.env |= self.env
        self._write_configuration()
        self._daemons: list[subprocess.Popen[str]] = []
        self._start()

    def _write_configuration(self) -> None:
        (self.directory / "state").mkdir()
        nodes = "\n".join(NODE.format(node=node, gpus=GPUS) for node in self.nodes)
        text = CONF.format(head=self.head, directory=self.directory, nodes=nodes)
        (self.directory / "slurm.conf").write_text(text)
        for number in range(GPUS):  # Slurm wants device nodes: these are /dev/null by another name
            os.mknod(self.directory / f"gpu{number}", 0o666 | 0o020000, os.makedev(1, 3))
        gpus = f"{self.directory}/gpu[0-{GPUS - 1}]"
        names = ",".join(node.name for node in self.nodes)
        (self.directory / "gres.conf").write_text(f"NodeName={names} Name=gpu File={gpus}\n")
        key = self.directory / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)

    def _start(self) -> None:
        munge = {
            "--key-file": "munge.key",
            "--socket": "munge.socket",
            "--pid-file": "munge.pid",
            "--log-file": "munged.log",
            "--seed-file": "munge.seed",
        }
        words = [word for flag, name in munge.items() for word in (flag, str(self.directory / name))]
        # One for all: its socket is a file that all hosts see. --force: the directory above is /tmp.
        self._daemon(self.head, "munged", "--foreground", "--force", *words)
        wait_until((self.directory / "munge.socket").exists, "munged")
        self._daemon(self.head, "slurmctld", "-D", "-c")
        for node in self.nodes:
            self._daemon(node, "slurmd", "-D", "-N", node.name)
        wait_until(self._is_idle, f"slurm; its logs are in {self.directory}")

    def _daemon(self, host: Host, name: str, *arguments: str) -> None:
        program = _where(name)
        assert program is not None
        with (self.directory / f"{name}-{host.name}.log").open("w") as log:
            self._daemons.append(host.start(program, *arguments, stdout=log, stderr=log))

    def _is_idle(self) -> bool:
        shown = self.head.run("sinfo", "-h", "-t", "idle", "-o", "%D", check=False).stdout.split()
        return sum(map(int, shown)) == len(self.nodes)

    def job(self, number: int | str) -> dict[str, Any]:
        """What the controller says of a job."""
        shown = self.head.run("scontrol", "show", "job", "-o", str(number), check=False).stdout
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def jobs(self) -> list[str]:
        """Those that wait or run."""
        return self.head.run("squeue", "-h", "-o", "%i %T %r").stdout.splitlines()

    def logs(self) -> str:
        """For a test that failed."""
        return "\n".join(
            f"== {p.name}\n{p.read_text()[-2000:]}" for p in sorted(self.directory.glob("*.log"))
        )


def short_directory() -> Path:
    """A unix socket's path has room for 107 bytes, and a test's own directory has a long name."""
    path = Path(tempfile.mkdtemp(prefix="slurm-"))
    path.chmod(0o755)
    return path
