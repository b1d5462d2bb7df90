"""The first process of a host (`hosts.py`): sets up its disks and its name, then buries orphans until its input ends.

When it goes, the kernel ends every process of its PID namespace: nothing of a host outlives it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

OWN = ("/tmp", "/dev/shm", "/mnt")


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def set_up_disks(about: dict[str, Any]) -> None:
    """Every host has a /tmp, a /dev/shm and a disk at /mnt of its own; what is to be shared lies under them again."""
    aside = Path("/mnt/.aside")
    mount("-t", "tmpfs", "-o", f"size={about['disk_mib']}m", "tmpfs", "/mnt")
    hidden = [path for path in about["shared"] if path.startswith(tuple(f"{own}/" for own in OWN))]
    for number, path in enumerate(hidden):
        (aside / str(number)).mkdir(parents=True)
        mount("--bind", path, str(aside / str(number)))
    for own in ("/tmp", "/dev/shm"):
        mount("-t", "tmpfs", "-o", "mode=1777,size=1g", "tmpfs", own)
    for number, path in enumerate(hidden):
        Path(path).mkdir(parents=True, exist_ok=True)
        mount("--move", str(aside / str(number)), path)
        (aside / str(number)).rmdir()
    if aside.exists():
        aside.rmdir()
    mount("--bind", about["names"], "/etc/hosts")


def bury_until_end_of_input() -> None:
    """Waits for whoever becomes our child, and for nothing else."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        readable, _, _ = select.select([0, woken], [], [])
        if 0 in readable and not os.read(0, 4096):
            return
        if woken in readable:
            os.read(woken, 4096)


def main() -> None:
    about = json.loads(sys.argv[1])
    socket.sethostname(about["name"])
    set_up_disks(about)
    print("ready", flush=True)
    bury_until_end_of_input()


if __name__ == "__main__":
    main()
