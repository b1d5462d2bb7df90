#!/usr/bin/env python3
"""What other tools say of the programs of benchmarks/silent_programs/: TrainCheck, and DDP's own checks.

    python benchmarks/others/silent_peers.py --ddp                          # TORCH_DISTRIBUTED_DEBUG=DETAIL, and static graphs
    python benchmarks/others/silent_peers.py --traincheck VENV/bin          # of a venv with `pip install traincheck`
    python benchmarks/others/silent_peers.py --ddp --only two_models --rows rows.jsonl

TrainCheck infers its invariants from a fault's twin: the healthy variant of the same file with the fewest other lines. The
fault is detected where it breaks an invariant that another run of the twin does not: what two good runs break of one
another is noise. DDP detects what ends the job with an error.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "benchmarks"))

from silent import PROGRAMS, Program, programs  # noqa: E402

RANKS = 2
TIMEOUT_S = 240
Row = dict[str, Any]


def twin_of(fault: Program, among: list[Program]) -> Program:
    """The healthy program of the same file that differs least."""
    file = fault.name.partition("/")[0]
    healthy = [p for p in among if p.kind == "healthy" and p.name.startswith(f"{file}/")]
    own = fault.source.splitlines()
    return max(
        healthy, key=lambda p: difflib.SequenceMatcher(None, own, p.source.splitlines(), False).ratio()
    )


def write(program: Program, folder: Path) -> Path:
    folder.mkdir(parents=True)
    shutil.copy(PROGRAMS / "workload.py", folder)
    script = folder / "train.py"
    script.write_text(program.source)
    return script


def run(command: list[str], folder: Path, **more: str) -> tuple[int | None, str]:
    """Its exit code, None where it took too long, and what it said."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | more
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout + done.stderr


# -- DDP ----------------------------------------------------------------------------------------------


def by_ddp(program: Program, folder: Path) -> Row:
    """With the checks that torch offers: shapes and order of collectives, and a graph that is promised to stay the same."""
    script = write(program, folder)
    wrapped = re.sub(r"\bDDP\((?!\))", "DDP(static_graph=True, module=", program.source)
    script.write_text(wrapped)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    code, text = run([*launch, str(script)], folder, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    said = re.findall(r"^(?:\[rank\d+\]: )?(\w*Error: .*)", text, re.MULTILINE)
    return {"detected": code != 0, "says": said[-1][:200] if said and code else ""}


# -- TrainCheck ---------------------------------------------------------------------------------------


def by_traincheck(fault: Program, twin: Program, folder: Path, tools: Path) -> Row:
    good = _collected(twin, folder / "good", tools)
    again, bad = (_collected(p, folder / name, tools) for p, name in ((twin, "again"), (fault, "bad")))
    if good is None or again is None or bad is None:
        return {"detected": False, "says": "no trace"}
    invariants = folder / "invariants.json"
    code, text = run([str(tools / "traincheck-infer"), "-f", str(good), "-o", str(invariants)], folder)
    if code != 0 or not invariants.exists():
        return {"detected": False, "says": f"no invariants: {text[-200:]}"}
    noise, found = (
        _failed(trace, invariants, folder / f"{trace.name}-check", tools) for trace in (again, bad)
    )
    if noise is None or found is None:
        return {"detected": False, "says": "not checked"}
    new = sorted(found - noise)
    kept = sum(1 for _ in invariants.open())
    return {
        "detected": bool(new),
        "says": f"{len(new)} of {kept} invariants, {len(noise)} noise: {new[:1]}"[:300],
    }


def _collected(program: Program, folder: Path, tools: Path) -> Path | None:
    script = write(program, folder)
    launch = (
        f"{tools / 'python'} -m torch.distributed.run --standalone --nproc-per-node={RANKS} {script.name}\n"
    )
    (folder / "run.sh").write_text(launch)
    trace = folder / "trace"
    models = sorted(
        set(re.findall(r"^(\w+) = (?:DDP|\w*Net|MLP|LM|Block|nn\.)\b", program.source, re.MULTILINE))
    )
    command = [str(tools / "traincheck-collect"), "-p", str(script), "-s", str(folder / "run.sh")]
    tracked = ["--models-to-track", *models] if models else []
    run([*command, *tracked, "--output-dir", str(trace)], folder, PYTHONPATH=str(folder))
    return trace if any(trace.rglob("trace_*")) else None


def _failed(trace: Path, invariants: Path, out: Path, tools: Path) -> set[str] | None:
    """Texts of the invariants that do not hold."""
    check = [
        str(tools / "traincheck-check"),
        "-f",
        str(trace),
        "-i",
        str(invariants),
        "--output-dir",
        str(out),
    ]
    code, _ = run(check, trace.parent)
    if code != 0:
        return None
    logs = [line for file in out.rglob("*fail*") if file.is_file() for line in _documents(file)]
    return {json.dumps(each.get("invariant"), sort_keys=True)[:500] for each in logs}


def _documents(file: Path) -> Iterator[Row]:
    decoder, text = json.JSONDecoder(), file.read_text(errors="replace")
    while text := text.lstrip():
        try:
            document, end = decoder.raw_decode(text)
        except ValueError:
            return
        text = text[end:]
        yield from document if isinstance(document, list) else [document]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ddp", action="store_true", help="DDP's own checks")
    parser.add_argument(
        "--traincheck", type=Path, metavar="BIN", help="where traincheck-collect and its python are"
    )
    parser.add_argument(
        "--only", nargs="*", metavar="EXPR", help="programs in whose name one of these is found"
    )
    parser.add_argument(
        "--kind", nargs="*", help="programs of these kinds, as in silent.py; without it all faults"
    )
    parser.add_argument(
        "--rows", type=Path, help="a file that rows are added to; programs in it are not run again"
    )
    options = parser.parse_args()
    everything = programs()
    chosen = [p for p in everything if (p.kind in options.kind if options.kind else p.kind != "healthy")]
    chosen = [p for p in chosen if not options.only or any(re.search(e, p.name) for e in options.only)]
    old = options.rows.read_text().splitlines() if options.rows and options.rows.exists() else []
    rows = [json.loads(line) for line in old]
    for tool in (["ddp"] if options.ddp else []) + (["traincheck"] if options.traincheck else []):
        for program in chosen:
            if any((row["tool"], row["name"]) == (tool, program.name) for row in rows):
                continue
            with tempfile.TemporaryDirectory(prefix="peers-") as text:
                folder = Path(text) / "job"
                if tool == "ddp":
                    found = by_ddp(program, folder)
                else:
                    twin = twin_of(program, everything)
                    found = by_traincheck(program, twin, folder, options.traincheck.absolute())
            rows.append({"tool": tool, "name": program.name, "kind": program.kind, **found})
            print(json.dumps(rows[-1]), flush=True)
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
        mine = [row for row in rows if row["tool"] == tool]
        print(f"{tool}: {sum(row['detected'] for row in mine)} of {len(mine)} reported")


if __name__ == "__main__":
    main()
