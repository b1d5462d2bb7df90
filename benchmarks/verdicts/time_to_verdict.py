#!/usr/bin/env python3
"""How long a person waits for the answer: from the moment a job gets stuck to verdict.json on disk.

    python benchmarks/verdicts/time_to_verdict.py            # 20 hangs of two ranks, about ten minutes
    python benchmarks/verdicts/time_to_verdict.py --quick    # 6 of them

The job itself writes down, by a clock of its own, when it gets stuck; each hang is of one of six kinds, one of
which has worked in silence for 15 s before, so that the first looks found it busy.
`capture_analysis` is what comes after the silence was long enough: two captures, the pause between them, and
the analysis. `stall_to_line` is until the first line of ours on the terminal that names the rank, for hangs that are proven
by themselves as well: those are to be told within 8 s at the median, all within 15 s. Native stacks, ending the job and the reports follow (`stall_to_end`). `detection_late` is how long after the learnt limit the first
capture began; `found` how many hangs got the right class and rank, and the same at once as in the end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

from shared import answer, environment

KINDS = {
    "queue": "local_lock_deadlock",
    "lock": "local_lock_deadlock",
    "socket": "external_wait",
    "child": "external_wait",
    "poll": "local_lock_deadlock",  # a variable of its own, which no thread is left to change
    "after_work": "local_lock_deadlock",
}
JOB = """
import os, queue, socket, subprocess, sys, threading, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def block(kind):
    until = time.monotonic() + 15 * (kind == "after_work")
    while time.monotonic() < until:
        torch.randn(64, 64).mm(torch.randn(64, 64))
    with open(os.environ["ONSET"], "w") as file:
        file.write(repr(time.time()))
    if kind in ("queue", "after_work"):
        queue.Queue().get()
    if kind == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    if kind == "socket":
        here, there = socket.socketpair()
        here.recv(1)
    if kind == "child":
        subprocess.run([sys.executable, "-c", "import threading; threading.Event().wait()"])
    while kind == "poll":
        time.sleep(0.1)

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(10**6):
    if step == 100 and dist.get_rank() == 1:
        block(sys.argv[1])
    optimizer.zero_grad()
    model(torch.randn(16, 256)).square().mean().backward()
    optimizer.step()
"""


def one(kind: str, folder: Path) -> dict[str, Any]:
    """One hang, seconds by name. Raises if no verdict comes."""
    (folder / "job.py").write_text(JOB)
    onset, out = folder / "onset", folder / "run"
    command = ["torchrun", "--standalone", "--nproc-per-node", "2", str(folder / "job.py"), kind]
    # What is suspected counts at once: the time until it is said is the same.
    limits = ["--timeout", "120", "--patience", "1"]
    ours = [sys.executable, "-m", "nsadiag", "run", *limits, "--out", str(out), "--"]
    run = subprocess.Popen(
        [*ours, *command],
        env=environment(ONSET=str(onset)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stderr
    said: list[float] = []
    reader = threading.Thread(target=_listen, args=(run.stderr, said))
    reader.start()
    while not (out / "verdict.json").exists():
        if run.poll() is not None:
            raise SystemExit(f"no verdict on {kind}")
        time.sleep(0.01)
    judged_at, first = time.time(), json.loads((out / "verdict.json").read_text())
    run.wait()
    reader.join()
    stuck_at = float(onset.read_text())
    watch, verdict = (json.loads((out / name).read_text()) for name in ("watch.json", "verdict.json"))
    # The watch counts from its own start, by the monotonic clock.
    started_at = time.time() - (time.monotonic() - watch["started_mono_ns"] / 1e9)
    look = watch["looks"][-1]
    return {
        "kind": kind,
        "certainty": first["certainty"],
        "stall_to_verdict_s": judged_at - stuck_at,
        "stall_to_line_s": min([*said, time.time()]) - stuck_at,
        "capture_analysis_s": judged_at - started_at - look["t_s"],
        "detection_late_s": started_at + look["t_s"] - stuck_at - watch["patience_s"],
        "found": (verdict["class"], verdict["guilty_ranks"]) == (KINDS[kind], [1])
        and verdict["signature"] == first["signature"],
        "stall_to_end_s": time.time() - stuck_at,
    }


def _listen(stream: IO[str], said: list[float]) -> None:
    """Notes when each line of ours came that names the rank."""
    for line in stream:
        if line.startswith("nsadiag: ") and "ank 1 " in line:
            said.append(time.time())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="6 hangs instead of 20")
    options = parser.parse_args()
    rows = []
    for kind in KINDS if options.quick else (list(KINDS) * 4)[:20]:
        folder = Path(tempfile.mkdtemp(prefix="time-to-verdict-"))
        rows.append(one(kind, folder))
        shutil.rmtree(folder)
        print({k: round(v, 2) if isinstance(v, float) else v for k, v in rows[-1].items()}, file=sys.stderr)
    total = [row["stall_to_verdict_s"] for row in rows]
    capture = [row["capture_analysis_s"] for row in rows]
    lines = [row["stall_to_line_s"] for row in rows]
    proven = [row["stall_to_line_s"] for row in rows if row["certainty"] == "proven"]
    late = [row["detection_late_s"] for row in rows]
    figures = {
        "stall_to_verdict_s_median": round(statistics.median(total), 2),
        "stall_to_verdict_s_max": round(max(total), 2),
        "stall_to_line_s_median": round(statistics.median(lines), 2),
        "stall_to_line_s_max": round(max(lines), 2),
        "proven": len(proven),
        "proven_to_line_s_median": round(statistics.median(proven), 2) if proven else None,
        "capture_analysis_s_median": round(statistics.median(capture), 2),
        "capture_analysis_s_max": round(max(capture), 2),
        "stall_to_end_s_median": round(statistics.median(row["stall_to_end_s"] for row in rows), 2),
        "detection_late_s_max": round(max(late), 2),
        "found": sum(row["found"] for row in rows),
        "runs": len(rows),
    }
    answer(figures, (f"{name:28}{value}" for name, value in figures.items()), as_json=options.json)


if __name__ == "__main__":
    main()
