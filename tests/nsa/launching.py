"""Starts the trainer in processes of its own, as a user would."""

import json
import os
import subprocess
import sys
from pathlib import Path

from support.processes.warm_python import WarmPython

ROOT = Path(__file__).parents[2]
TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run_python(*arguments: str, timeout: float = 600) -> subprocess.CompletedProcess:
    """The finished `python ARGUMENTS`, with this checkout importable."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun then ends its workers; killed, it would leave them
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def run_cells(warm: WarmPython, directory: Path, cells: dict[str, list[str]]) -> dict[str, list[float]]:
    """The losses of each cell, trained one after the other on two ranks."""
    asked, got = directory / "cells.json", directory / "losses.json"
    asked.write_text(json.dumps(cells))
    script = ROOT / "tests/nsa/run_cells.py"
    ranks = warm.start_ranks(2, script, str(asked), str(got), cwd=ROOT, env=os.environ)
    said = [rank.communicate(timeout=800)[1] for rank in ranks]
    for rank in ranks:
        rank.close()
    # Judged by what was written: gloo now and then aborts a clean job at its exit.
    assert got.exists(), said
    return json.loads(got.read_text())
