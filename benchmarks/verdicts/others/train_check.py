"""TrainCheck (OrderLab, OSDI'25) on the programs of silent_programs/: its invariants of each file's twin, checked on the faults.

    python -m venv tc; tc/bin/pip install traincheck torch     # 0.2.0, and the torch that is measured with
    python benchmarks/verdicts/others/train_check.py tc/bin ddp averaged_by_hand --rows rows.jsonl

For each file the first variant is its reference: a trace of it, and the invariants that TrainCheck infers from that. Then each
variant is traced with these invariants and checked. A fault is detected where more invariants fail than on a second trace of
the reference. Variables are tracked by subclasses: proxies, its default, end in SIGSEGV under DDP with gloo (torch 2.13), and the
sampler needs `model.parameters()` written in the optimizer's own line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from silent import PROGRAMS, Program, variants

RANKS = 2
TIMEOUT_S = 600  # of each of its tools
LAUNCH = "#!/bin/sh\n{python} -m torch.distributed.run --standalone --nproc-per-node {ranks} train.py\n"
Row = dict[str, Any]
FAILED = re.compile(r"Total failed invariants: (\d+)/(\d+)")


def trace(tools: Path, program: Program, folder: Path, invariants: Path | None) -> Path:
    """The directory with the traces of one run."""
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(program.source)
    (folder / "run.sh").write_text(LAUNCH.format(python=tools / "python", ranks=RANKS))
    shutil.copy(PROGRAMS / "workload.py", folder)
    wanted = ["--invariants", str(invariants)] if invariants else []
    style = ["--models-to-track", "net", "--model-tracker-style", "subclass"]
    run(
        tools,
        "collect",
        folder,
        "-p",
        "train.py",
        "-s",
        "run.sh",
        "-a",
        *style,
        *wanted,
        "--output-dir",
        "trace",
    )
    return folder / "trace"


def run(tools: Path, tool: str, folder: Path, *arguments: str) -> str:
    """What it printed, until its time was up."""
    log = folder / f"{tool}.log"
    with log.open("w") as file, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [str(tools / f"traincheck-{tool}"), *arguments],
            cwd=folder,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
    return log.read_text(errors="replace")


def failed(tools: Path, program: Program, folder: Path, invariants: Path) -> tuple[int, int] | None:
    """How many invariants fail, of how many; None where it did not say."""
    traces = trace(tools, program, folder, invariants)
    said = FAILED.search(run(tools, "check", folder, "-f", str(traces), "-i", str(invariants)))
    return (int(said[1]), int(said[2])) if said else None


def measured(tools: Path, path: Path, folder: Path, jobs: int) -> Iterator[Row]:
    reference, *others = variants(path)
    invariants = folder / "invariants.json"
    started = time.monotonic()
    traces = trace(tools, reference, folder / "reference", None)
    run(tools, "infer", folder, "-f", str(traces), "-o", str(invariants))
    if not invariants.exists():
        yield {
            "name": reference.name,
            "kind": "reference",
            "failed": None,
            "seconds": time.monotonic() - started,
        }
        return
    again = failed(tools, reference, folder / "again", invariants)
    yield {
        "name": reference.name,
        "kind": "reference",
        "failed": again,
        "seconds": time.monotonic() - started,
    }

    def judged(program: Program) -> Row:
        found = failed(tools, program, folder / program.name.split("/")[1], invariants)
        detected = bool(found and again and found[0] > again[0])
        return {"name": program.name, "kind": program.kind, "failed": found, "detected": detected}

    with ThreadPoolExecutor(jobs) as pool:
        yield from (done.result() for done in as_completed([pool.submit(judged, p) for p in others]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tools", type=Path, help="the directory with traincheck-collect and its Python")
    parser.add_argument("files", nargs="+", help="of silent_programs/, without .py.in")
    parser.add_argument("--rows", type=Path, help="a file to add the rows to")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time")
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.files:
        with tempfile.TemporaryDirectory(prefix="traincheck-") as folder:
            path = PROGRAMS / f"{name}.py.in"
            for row in measured(options.tools.absolute(), path, Path(folder), options.jobs):
                rows.append(row)
                print(json.dumps(row), flush=True)
                if options.rows:
                    with options.rows.open("a") as file:
                        file.write(json.dumps(row) + "\n")
    faults = [row for row in rows if row["kind"] not in ("healthy", "reference")]
    healthy = [row for row in rows if row["kind"] == "healthy"]
    print(f"detected: {sum(row['detected'] for row in faults)} of {len(faults)} faults")
    print(f"reported: {sum(row['detected'] for row in healthy)} of {len(healthy)} healthy programs")


if __name__ == "__main__":
    main()
