"""The faults of NVIDIA's resiliency extension that need no GPU, injected into each rank of three: verdict, and time until it.

    git clone https://github.com/NVIDIA/nvidia-resiliency-ext
    python benchmarks/verdicts/others/inject_fault.py nvidia-resiliency-ext            # ten faults on three ranks: 30 jobs
    python benchmarks/verdicts/others/inject_fault.py nvidia-resiliency-ext --only GIL --rows rows.jsonl

The job trains on gloo, and its faults come from the checkout's inject_fault.py, as that file's own users call it.
`first_line_s` is the time from the fault to the first line of ours that says what happened, `verdict_s` to verdict.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

MODULE = Path("src/nvidia_resiliency_ext/shared_utils/inject_fault.py")
WORLD = 3
STEP = 40  # at which the fault's delay begins
JOB = f"""
import importlib.util, os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

spec = importlib.util.spec_from_file_location("inject_fault", sys.argv[1])
faults = importlib.util.module_from_spec(spec)
spec.loader.exec_module(faults)

def note():
    with open(os.environ["ONSET"], "w") as file:
        file.write(repr(time.time()))

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 128)))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(10**6):
    if step == {STEP} and dist.get_rank() == int(sys.argv[3]):
        faults.dispatch_fault_injection(faults.Fault[sys.argv[2]], 0.5, note)
    optimizer.zero_grad()
    model(torch.randn(16, 128)).square().mean().backward()
    optimizer.step()
    faults.maybe_raise_workload_exception()
    time.sleep(0.01)
"""
# What each fault is: an exception that leaves the rank, a signal that ends it, or a rank that no longer comes.
EXCEPTION, KILLED = frozenset({"rank_exception"}), frozenset({"rank_killed"})
TRUTH = {
    "WORKLOAD_EXC": EXCEPTION,
    "ASYNC_EXC": EXCEPTION,
    "SIGNAL_EXC": EXCEPTION,
    "OS_ABORT": KILLED,
    "LOCK_GIL": frozenset({"gil_held_native_call"}),
    "SEGFAULT": KILLED,
    "SIGINT": EXCEPTION | KILLED,  # KeyboardInterrupt, sent by somebody
    "SIGKILL": KILLED,
    "SIGTERM": KILLED,
    "SIGSTOP": frozenset({"missing_rank"}),
}
TIMEOUT_S = 180.0


def one(module: Path, fault: str, rank: int, folder: Path) -> dict[str, Any]:
    (folder / "train.py").write_text(JOB)
    onset, out = folder / "onset", folder / "run"
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "ONSET": str(onset),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    launcher = ["torchrun", "--standalone", "--nproc-per-node", str(WORLD)]
    ours = ["nsadiag", "run", "--timeout", str(TIMEOUT_S), "--out", str(out), "--"]
    command = [*ours, *launcher, "train.py", str(module), fault, str(rank)]
    run = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    lines: list[tuple[float, str]] = []
    assert run.stderr
    reader = threading.Thread(target=_read, args=(run.stderr, lines))
    reader.start()
    while run.poll() is None and not (out / "verdict.json").exists():
        time.sleep(0.05)
    judged_at = time.time()
    run.wait()
    reader.join()
    verdict = json.loads((out / "verdict.json").read_text())
    at = float(onset.read_text()) if onset.exists() else judged_at
    said = [t for t, line in lines if line.startswith("nsadiag: ") and f"ank {rank}" in line]
    return {
        "fault": fault,
        "rank": rank,
        "class": verdict["class"],
        "guilty_ranks": verdict["guilty_ranks"],
        "certainty": verdict.get("certainty"),
        "action": (verdict.get("action") or {}).get("do"),
        "summary": verdict["summary"],
        "verdict_s": round(judged_at - at, 1),
        "first_line_s": round(min([*said, judged_at]) - at, 1),
        "load": round(os.getloadavg()[0], 1),
        "right": verdict["guilty_ranks"] == [rank] and verdict["class"] in TRUTH[fault],
    }


def _read(stream: IO[str], into: list[tuple[float, str]]) -> None:
    for line in stream:
        into.append((time.time(), line))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="a checkout of NVIDIA/nvidia-resiliency-ext")
    parser.add_argument("--only", default="", help="faults in whose name this stands")
    parser.add_argument("--rows", type=Path, help="a file to which each row is added")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    module = (options.checkout / MODULE).resolve()
    if not module.exists():
        sys.exit(f"error: no {MODULE} under {options.checkout}")
    rows = []
    for fault in (fault for fault in TRUTH if options.only in fault):
        for rank in range(WORLD):
            with tempfile.TemporaryDirectory(prefix="inject-") as folder:
                row = one(module, fault, rank, Path(folder))
            rows.append(row)
            mark = "right" if row["right"] else "WRONG"
            print(
                f"{fault:13} on rank {rank}: {mark}, {row['class']} {row['guilty_ranks']} after "
                f"{row['first_line_s']} s ({row['verdict_s']} s)",
                file=sys.stderr,
            )
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    figures = {
        "jobs": len(rows),
        "right": sum(row["right"] for row in rows),
        "first_line_s_median": statistics.median(row["first_line_s"] for row in rows),
        "first_line_s_max": max(row["first_line_s"] for row in rows),
    }
    print(json.dumps({"rows": rows, "figures": figures}, indent=1) if options.json else figures)


if __name__ == "__main__":
    main()
