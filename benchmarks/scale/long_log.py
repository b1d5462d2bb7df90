"""How long `nsadiag analyze` takes for a long log, and how much memory, beside `grep -c` on the same file in the same rounds.

The log is one of 16 ranks that print a line a step, with a traceback in its middle and NCCL's timeouts at its end; `--kind` varies
what the lines are like: `steps` alike but for their numbers, `words` of which each differs, `errors` that all look worth reading,
`bars` of a progress bar that never ends its line. What is measured includes the check that both places are named by their true
line. `--mib` sets its size (2,048 by default, 64 with `--quick`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

KINDS = ("steps", "words", "errors", "bars")
RANKS = 16
WORDS = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
    "omicron",
    "pi",
    "rho",
    "sigma",
    "tau",
    "upsilon",
    "phi",
    "chi",
    "psi",
]
RAISED = """[rank3]: Traceback (most recent call last):
[rank3]:   File "/job/train.py", line 52, in train
[rank3]:     raise ValueError("bad batch")
[rank3]: ValueError: bad batch
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--mib", type=int, default=0)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--kind", choices=KINDS, action="append")
    given = arguments.parse_args()
    size = (given.mib or (64 if given.quick else 2048)) * 2**20
    figures = {kind: measured(kind, size, given.rounds) for kind in given.kind or KINDS}
    if given.json:
        machine = {"cpus": os.cpu_count(), "platform": platform.platform()}
        print(json.dumps({"machine": machine, "figures": figures}, indent=1))
        return
    for kind, row in figures.items():
        print(f"{kind:8}", "  ".join(f"{name} {value}" for name, value in row.items()))


def measured(kind: str, size: int, rounds: int) -> dict[str, float | int | bool]:
    """Medians of alternating runs."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "job.log"
        line = write(log, kind, size)
        ours, theirs, cpu, peak, right = [], [], [], 0, True
        for _ in range(rounds):
            theirs.append(_run("grep", "-c", "Traceback", str(log))[0])
            took, used, mib, out = _run(sys.executable, "-m", "nsadiag", "analyze", str(log), "--json")
            ours.append(took)
            cpu.append(used)
            peak = max(peak, mib)
            verdict = json.loads(out)["verdict"]
            right &= verdict["guilty_ranks"] == [3] and any(
                each["source"].endswith(f"#line {line}") for each in verdict["evidence"]
            )
        return {
            "mib": log.stat().st_size >> 20,
            "nsadiag_s": round(statistics.median(ours), 2),
            "nsadiag_cpu_s": round(statistics.median(cpu), 2),
            "nsadiag_mib": peak,
            "grep_s": round(statistics.median(theirs), 2),
            "right_line": right,
        }


def write(path: Path, kind: str, size: int) -> int:
    """Write the log; returns the line of its traceback."""
    number = line = written = 0
    with path.open("w") as file:
        for block in _blocks(kind):
            file.write(block)
            number += block.count("\n")
            written += len(block)
            if not line and written >= size // 2:
                if not block.endswith("\n"):
                    file.write("\n")
                    number += 1
                line = number + 1
                file.write(RAISED)
                number += RAISED.count("\n")
            if written >= size:
                return line
    return line


def _blocks(kind: str) -> Iterator[str]:
    chance, step = random.Random(0), 0
    while True:
        rows = []
        for _ in range(10_000):
            rank, step = step % RANKS, step + 1
            stamp = f"2026-11-28 10:{step // 600 % 60:02d}:{step // 10 % 60:02d},{step % 1000:03d}"
            if kind == "words":
                said = " ".join(chance.choices(WORDS, k=12))
            elif kind == "errors":
                said = f"reconstruction error {step % 997 / 1000:.4f}, {' '.join(chance.choices(WORDS, k=4))}"
            else:
                said = f"step {step // RANKS} loss {3.2 - step % 997 / 1000:.4f} lr 3.0e-04 tokens/s 13{step % 100}"
            end = "\r" if kind == "bars" else "\n"
            rows.append(f"[rank{rank}]:{stamp} INFO trainer.py:214 {said}{end}")
        yield "".join(rows)


def _run(*command: str) -> tuple[float, float, int, str]:
    """Seconds, those of CPU, the most memory in MiB, and what it printed."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        _, _, used = os.wait4(process.pid, 0)
        took = time.monotonic() - began
        out.seek(0)
        return took, used.ru_utime + used.ru_stime, used.ru_maxrss >> 10, out.read()


if __name__ == "__main__":
    main()
