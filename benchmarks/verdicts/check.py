#!/usr/bin/env python3
"""`nsadiag check` on the scripts of repro/, beside what `run` promises: `python benchmarks/verdicts/check.py [-k NAME] [--out FILE]`.

A script is told where its ranks' calls differ or a rank raises; a healthy one is accused where it is told.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from tests.support.promises import Promise, promises  # noqa: E402

SECONDS = 60
# torchrun is the one of this Python.
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", default="", help="only scripts with this in their name")
    parser.add_argument("--out", type=Path, help="append each result to this file as a line of JSON")
    parser.add_argument("--seconds", type=int, default=SECONDS)
    given = parser.parse_args()
    rows = []
    for promise in promises():
        if given.k in promise.name and not promise.needs:
            row = checked(promise, given.seconds)
            rows.append(row)
            print(json.dumps(row), flush=True)
            if given.out:
                with given.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    print(json.dumps(summary(rows), indent=1))


def checked(promise: Promise, seconds: int) -> dict[str, object]:
    """One script under check."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "nsadiag", "check", "--out", str(out), "--seconds", str(seconds)]
        began = time.monotonic()
        done = subprocess.run(
            [*command, "--", *promise.command],
            capture_output=True,
            text=True,
            cwd=folder,
            check=False,
            env=ENVIRONMENT,
        )
        took = time.monotonic() - began
        rehearsal, verdict = (_read(out / name) for name in ("rehearsal.json", "verdict.json"))
    where = (verdict.get("where") or {}).get("code") or ""
    return {
        "name": promise.name,
        "answer": rehearsal.get("answer", f"failed: {done.stderr[-300:]}"),
        "matched": rehearsal.get("matched"),
        "class": verdict.get("class"),
        "class_right": verdict.get("class") in promise.classes,
        "ranks_right": tuple(verdict.get("guilty_ranks", ())) == promise.guilty_ranks,
        "line_right": not promise.codes or any(code in where for code in promise.codes),
        "expected": promise.classes[0],
        "exit": done.returncode,
        "seconds": round(took, 1),
    }


def _read(file: Path) -> dict[str, object]:
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError):
        return {}


def summary(rows: list[dict[str, object]]) -> dict[str, object]:
    """Figures by kind of script."""
    healthy = [row for row in rows if row["expected"] == "healthy"]
    others = [row for row in rows if row["expected"] != "healthy"]
    told = [row for row in others if row["answer"] in ("differs", "raised")]
    return {
        "healthy": len(healthy),
        "healthy_accused": [row["name"] for row in healthy if row["answer"] in ("differs", "raised")],
        "others": len(others),
        "told": len(told),
        "class_right": sum(bool(row["class_right"]) for row in told),
        "ranks_right": sum(bool(row["ranks_right"]) for row in told),
        "line_right": sum(bool(row["line_right"]) for row in told),
    }


if __name__ == "__main__":
    main()
