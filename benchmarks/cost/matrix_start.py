#!/usr/bin/env python3
"""What starting processes costs a matrix: `nsadiag matrix` against a shell loop of torchrun over the same cells.

    python benchmarks/cost/matrix_start.py            # the built-in quick matrix, 36 cells, some minutes
    python benchmarks/cost/matrix_start.py --quick    # 9 of them

Both run the same commands, alternating block by block; the loop runs plain torchrun, without probes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nsadiag.commands.output import machine, versions
from nsadiag.spec import Cell, Matrix, find_spec, load_matrix, select

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}


def matrix_seconds(matrix: Matrix, expression: str | None) -> float:
    """One `nsadiag matrix`, everything included. Raises if any cell is not healthy."""
    out = Path(tempfile.mkdtemp(prefix="matrix-start-"))
    choose = ["-k", expression] if expression else []
    command = [sys.executable, "-m", "nsadiag", "matrix", matrix.name, "--out", str(out / "m"), *choose]
    started = time.monotonic()
    subprocess.run(command, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds = time.monotonic() - started
    shutil.rmtree(out)
    return seconds


def loop_seconds(cells: list[Cell]) -> float:
    """The same cells as a shell script of torchrun lines would run them. Raises if one fails."""
    started = time.monotonic()
    for cell in cells:
        subprocess.run(
            cell.command(),
            env={**ENVIRONMENT, **cell.env},
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="9 cells instead of 36")
    parser.add_argument("--runs", type=int, default=1, help="alternating runs of each; medians are printed")
    options = parser.parse_args()
    matrix = load_matrix(find_spec("nsa-quick"))
    expression = "layers=1" if options.quick else None
    cells = select(matrix.cells(), expression) if expression else matrix.cells()
    pairs = [(matrix_seconds(matrix, expression), loop_seconds(cells)) for _ in range(options.runs)]
    ours, loop = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    figures = {
        "cells": len(cells),
        "matrix_s": round(ours, 1),
        "torchrun_loop_s": round(loop, 1),
        "ratio": round(ratio, 2),
        "runs": options.runs,
    }
    if options.json:
        print(json.dumps({"machine": {**machine(), **versions()}, "figures": figures}, indent=1))
        return
    print(f"{len(cells)} cells, medians of {options.runs} run(s) each, {machine()['cpus']} CPUs")
    print(f"  nsadiag matrix           {ours:7.1f} s   ({ours / len(cells):.2f} s a cell)")
    print(f"  torchrun, cell by cell   {loop:7.1f} s   ({loop / len(cells):.2f} s a cell)")
    print(f"  ratio                    {ratio:7.2f}")


if __name__ == "__main__":
    main()
