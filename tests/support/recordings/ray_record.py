"""Runs scripts of repro/ray on a cluster of one raylet, attaches to each, and compares the verdict with the promise.

    python -m tests.support.recordings.ray_record [--record] [NAME ...]     # all of them, without a name; --record packs those that are right

Raylets live in network namespaces, as in tests/hosts: root is needed. What each attach left is kept below --out.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from support.cluster.hosts import Hosts, send
from support.cluster.ray_cluster import RayCluster
from support.jobs import BIN, GIVE_UP_S, wait_until
from support.recordings.ray_promises import RayPromise, misses, ray_promises, record

ROOT = Path(__file__).resolve().parents[3]
SETTLED_S = 25.0  # for actors that import torch on a machine that others use
LOOKS = 4
ROOM = {"accelerator": 2}


def looked_at(ray: RayCluster, promise: RayPromise, out: Path, settled_s: float = SETTLED_S) -> str:
    """What `nsadiag attach ray:` said of one run of the script; its evidence goes to `out`."""
    with (out.parent / f"{promise.script.stem}.log").open("w") as log:
        driver = ray.head.start(sys.executable, promise.script, cwd=ROOT, stdout=log, stderr=log)
    said = ""
    try:
        time.sleep(max(promise.after_s, settled_s))
        for _ in range(LOOKS):
            said = _attach(ray, out)
            # On a busy machine the job may not have come to its failure.
            if promise.outcome == "healthy" or not re.search(r"^nsadiag: (incomplete|healthy):", said, re.M):
                break
    finally:
        send(driver, signal.SIGKILL)
        driver.wait()
        wait_until(lambda: ray.held() == [], "the job is gone")
    return said


def _attach(ray: RayCluster, out: Path) -> str:
    """What it prints; of several jobs the one that came last is meant."""
    line = [BIN / "nsadiag", "attach", "--force", "--out", out]
    done = ray.head.run(*line, "ray:", cwd=out.parent, check=False, seconds=GIVE_UP_S)
    if several := re.findall(r"ray:\w+", done.stderr.partition("several jobs run")[2]):
        done = ray.head.run(*line, several[-1], cwd=out.parent, check=False, seconds=GIVE_UP_S)
    return done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--settled", type=float, default=SETTLED_S, help="seconds until each is looked at")
    parser.add_argument("--out", type=Path, help="a directory; a temporary one without")
    asked = parser.parse_args()
    folder = asked.out or Path(tempfile.mkdtemp(prefix="ray-"))
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    hosts, wrong = Hosts(("node0",), folder), 0
    try:
        ray = RayCluster(hosts, folder, cpus=4, resources=ROOM)
        for promise in ray_promises():
            if asked.names and promise.script.stem not in asked.names:
                continue
            out = folder / promise.script.stem
            said = looked_at(ray, promise, out, asked.settled)
            found = misses(promise, out) if out.exists() else ["no verdict"]
            wrong += bool(found)
            print(f"{promise.script.stem}: {'; '.join(found) or 'right'}", flush=True)
            if found:
                print(said, flush=True)
            elif asked.record:
                record(promise, out)
    finally:
        hosts.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
