"""Recordings of jobs of several launchers: what `nsadiag attach` left of the cases of benchmarks/verdicts/role_programs.

python -m tests.support.recordings.role_record DIR           # packs what measure.py kept there; a wrong verdict is refused
python -m tests.support.recordings.role_record DIR --run     # what `measure.py --run` kept: with what was recorded of ranks
"""

from __future__ import annotations

import io
import json
import re
import runpy
import sys
import tarfile
from pathlib import Path
from typing import Any

from nsadiag.analysis.verdict import judge_directory
from nsadiag.evidence.layout import RunDir, read_json

from .golden import judged, packed, renamed, scrubbed

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "golden" / "roles"
WRAPPED = GOLDEN / "run"
TRACKER = "resource_tracker"  # a child of multiprocessing's that does no work
KEEP_EVENTS = 256  # of a rank's ring
KEPT = ("roles.json", "meta.json", "py_spy.json", "proc.json", "waits.json", "index.json")
CASES: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks/verdicts/role_programs/cases.py"))["CASES"]
MOST_BYTES = 40 * 1024


def misses(name: str, directory: Path) -> list[str]:
    """What of the case's truth the verdict on that directory does not tell."""
    case, verdict = CASES[name], judge_directory(directory).to_json()
    if not case.classes:
        return [str(verdict["summary"])] if verdict["outcome"] == "hung" else []
    document = next(f for f in (directory / "roles.json", directory / "roles" / "roles.json") if f.exists())
    roles = {p["number"]: p["role"] for p in read_json(document, {})["processes"]}
    guilty = {re.sub(r" (\d)$", r"\1", roles[n]) for n in verdict["guilty_ranks"]}
    code = (verdict["where"] or {}).get("code") or ""
    wrong = [] if guilty and guilty <= set(case.roles) else [f"guilty {sorted(guilty)}"]
    wrong += [] if verdict["class"] in case.classes else [f"class {verdict['class']}"]
    wrong += [] if any(text in code for text in case.code) else [f"line {code!r}"]
    return wrong


def record(name: str, directory: Path) -> None:
    """Packs what the analysis reads. Raises ValueError where the verdict is wrong."""
    if wrong := misses(name, directory):
        raise ValueError(f"{name}: {'; '.join(wrong)}")
    names = [*renamed(directory), (str(ROOT), "/job")]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for path in sorted(directory.rglob("*")):
            if path.name in KEPT or path.parent.name == "sources":
                text = scrubbed(_slim(path), names).encode()
                member = tarfile.TarInfo(str(path.relative_to(directory)))
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))
    if len(packed.getvalue()) > MOST_BYTES:
        raise ValueError(f"{name}: {len(packed.getvalue())} bytes")
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / f"{name}.tar.xz").write_bytes(packed.getvalue())


def record_run(name: str, directory: Path) -> None:
    """The same of a run directory."""
    if wrong := misses(name, directory):
        raise ValueError(f"{name}: {'; '.join(wrong)}")
    WRAPPED.mkdir(exist_ok=True)
    content = packed(RunDir(path=directory), KEEP_EVENTS)
    _, tells = judged(content)
    if len(content) > MOST_BYTES or tells:
        raise ValueError(f"{name}: {len(content)} bytes, names {tells}")
    (WRAPPED / f"{name}.tar.xz").write_bytes(content)


def _slim(path: Path) -> str:
    """Without command lines of the machine."""
    if path.suffix != ".json":
        return path.read_text()
    document = read_json(path, {})
    if path.name == "proc.json":
        for child in document.get("children", []):
            child["command"] = TRACKER if TRACKER in child["command"] else ""
        document["fds"]["open"] = [
            r for r in document["fds"].get("open", []) if r["kind"] in ("tcp", "pipe", "unix")
        ]
    return json.dumps(document)


if __name__ == "__main__":
    for found in sorted(Path(sys.argv[1]).iterdir()):
        try:
            (record_run if "--run" in sys.argv else record)(found.name, found / "run")
        except (ValueError, KeyError) as error:
            print(f"not packed: {error}", file=sys.stderr)
