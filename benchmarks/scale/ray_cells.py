#!/usr/bin/env python3
"""Engine ray under load: many tiny cells over one cluster, and a driver that is killed again and again.

    python benchmarks/scale/ray_cells.py --cells 1000           # over three raylets of --cpus CPUs: seconds in all, and for each cell
    python benchmarks/scale/ray_cells.py --cells 30 --kills 50  # at moments drawn from --seed, each followed by --resume

Raylets live in network namespaces, as in tests/hosts: root is needed. Each rank notes that it began, so that a cell which
was done and ran again is seen; the script fails where one did, and where anything is left behind.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO), str(REPO / "tests")]
from support.cluster.hosts import Hosts, send  # noqa: E402
from support.cluster.ray_cluster import RayCluster  # noqa: E402
from support.jobs import BIN  # noqa: E402

SPEC = """
name: many
command: cell.py
probes: light
stall_after_s: 60
timeout_s: 300
axes:
  number:
    values: [{numbers}]
    args: "{{value}}"
"""
CELL = """
import os, sys, time
open(f"began/{sys.argv[1]}-{time.time_ns()}", "w").close()
"""
LINE = [BIN / "nsadiag", "matrix", "m.yaml", "--engine", "ray", "--out", "out"]


def finished(directory: Path) -> set[str]:
    """Numbers of the cells that are done, as they are now."""
    found = set()
    for path in directory.glob("out/cells/*/cell.json"):
        about = json.loads(path.read_text())
        if about.get("wall_s") is not None and (path.parent / "verdict.json").exists():
            found.add(about["factors"]["number"])
    return found


def began(directory: Path) -> collections.Counter[str]:
    return collections.Counter(path.name.partition("-")[0] for path in (directory / "began").iterdir())


def start(ray: RayCluster, directory: Path, *words: str) -> subprocess.Popen[str]:
    return ray.head.start(*LINE, *words, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill(ray: RayCluster, directory: Path, draw: random.Random, seconds: float, *words: str) -> bool:
    """Whether the driver was killed; False where it had come to its end before."""
    started = start(ray, directory, *words)
    try:
        started.wait(draw.uniform(0, seconds))
        return False
    except subprocess.TimeoutExpired:
        send(started, signal.SIGKILL)
        started.wait()
        return True


def measure(cells: int, kills: int, seed: int, seconds: float, cpus: int, folder: Path) -> dict[str, object]:
    (folder / "began").mkdir()
    (folder / "cell.py").write_text(CELL)
    (folder / "m.yaml").write_text(SPEC.format(numbers=", ".join(map(str, range(cells)))))
    hosts = Hosts(("node0", "node1", "node2"), folder)
    try:
        ray = RayCluster(hosts, folder, cpus)
        draw, killed, twice = random.Random(seed), 0, set()
        began_at, cpu = time.monotonic(), os.times()
        (folder / "out").mkdir()
        while killed < kills:
            done, before = finished(folder), began(folder)
            if not kill(ray, folder, draw, seconds, "--resume"):
                break
            killed += 1
            twice |= {number for number in done if began(folder)[number] > before[number]}
        done, before = finished(folder), began(folder)
        last = start(ray, folder, "--resume")
        try:
            code = last.wait()
        except KeyboardInterrupt:  # what is done by then is a figure too
            send(last, signal.SIGINT)
            code = last.wait()
        twice |= {number for number in done if began(folder)[number] > before[number]}
        wall = time.monotonic() - began_at
        return {
            "cells": cells, "done": len(finished(folder)), "exit_code": code, "kills": killed, "ran_twice": sorted(twice),
            "wall_s": round(wall, 1), "cell_s": round(wall / cells, 3), "left": ray.left() + ray.held(),
            "load": os.getloadavg()[0], "children_cpu_s": round(os.times().children_user - cpu.children_user, 1),
        }  # fmt: skip
    finally:
        hosts.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--within", type=float, default=20.0, help="seconds in which a driver is killed")
    parser.add_argument("--cpus", type=int, default=2, help="of each of the three raylets")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ray-cells-") as name:
        Path(name).chmod(0o755)
        found = measure(asked.cells, asked.kills, asked.seed, asked.within, asked.cpus, Path(name))
    print(json.dumps(found, indent=1))
    return 0 if found["done"] == found["cells"] and not found["ran_twice"] and not found["left"] else 1


if __name__ == "__main__":
    sys.exit(main())
