"""What each script of repro/ray/ promises in its docstring, and its recording: what `nsadiag attach ray:JOB` left of one run."""

from __future__ import annotations

import ast
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nsadiag.analysis.verdict import judge_directory
from nsadiag.evidence.layout import read_json

from .golden import renamed, scrubbed

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "repro" / "ray"
GOLDEN = ROOT / "tests" / "golden" / "ray"
KEPT = ("ray.json", "meta.json", "py_spy.json", "proc.json", "waits.json")
MOST_BYTES = 40 * 1024


@dataclass(frozen=True, kw_only=True)
class RayPromise:
    """Where a field holds several values, any of them is right."""

    script: Path
    outcome: str
    certainty: tuple[str, ...]
    cls: str
    guilty: tuple[str, ...]  # names of actors
    code: str | None  # part of the line of `where`
    peers: str | None
    after_s: float  # for the failure to happen, at least

    @property
    def archive(self) -> Path:
        return GOLDEN / f"{self.script.stem}.tar.xz"


def ray_promises() -> list[RayPromise]:
    return [_promise(path) for path in sorted(SCRIPTS.glob("*.py"))]


def _promise(script: Path) -> RayPromise:
    doc = ast.get_docstring(ast.parse(script.read_text())) or ""
    rows = [line.strip() for line in doc.partition("Promise:")[2].splitlines() if line.strip()]
    fields: dict[str, str] = {key: value.strip() for key, _, value in (row.partition(":") for row in rows)}
    outcome, _, certainty = fields["outcome"].partition(" (")
    return RayPromise(
        script=script, outcome=outcome, certainty=tuple(c.strip() for c in certainty.strip(")").split(",") if c),
        cls=fields.get("class", outcome), guilty=tuple(yaml.safe_load(fields.get("guilty", "[]"))),
        code=fields.get("code"), peers=fields.get("peers"), after_s=float(fields.get("after_s", 0)),
    )  # fmt: skip


def told(directory: Path, verdict: dict[str, Any]) -> dict[str, Any]:
    """The verdict in the words of a promise."""
    names = names_in(directory)
    return {
        "outcome": verdict["outcome"], "certainty": verdict["certainty"], "class": verdict["class"],
        "guilty": sorted(names.get(n, str(n)) for n in verdict["guilty_ranks"]),
        "code": (verdict["where"] or {}).get("code"), "peers": (verdict["peers_at"] or {}).get("code"),
    }  # fmt: skip


def names_in(directory: Path) -> dict[int, str]:
    from nsadiag.analysis.facts.actors.job import ActorJob
    from nsadiag.analysis.load import load_cell

    return ActorJob(cell=load_cell(directory)).names


def misses(promise: RayPromise, directory: Path) -> list[str]:
    """What of the promise the verdict on that directory does not keep."""
    found = told(directory, judge_directory(directory).to_json())
    wrong = []
    if found["outcome"] != promise.outcome:
        wrong.append(f"outcome {found['outcome']}, not {promise.outcome}")
    if promise.certainty and found["certainty"] not in promise.certainty:
        wrong.append(f"certainty {found['certainty']}")
    if promise.outcome == "hung":
        if found["class"] != promise.cls:
            wrong.append(f"class {found['class']}, not {promise.cls}")
        if found["guilty"] != sorted(promise.guilty):
            wrong.append(f"guilty {found['guilty']}, not {promise.guilty}")
        for key, wanted in (("code", promise.code), ("peers", promise.peers)):
            if wanted and wanted not in (found[key] or ""):
                wrong.append(f"{key} {found[key]!r}, not {wanted!r}")
    return wrong


def record(promise: RayPromise, directory: Path) -> None:
    """Pack what the analysis reads of a run directory. Raises ValueError where the verdict is not the promised one."""
    wrong = misses(promise, directory)
    if wrong:
        raise ValueError(f"{promise.script.stem}: {'; '.join(wrong)}")
    names = [*renamed(directory), (str(ROOT), "/job")]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for path in sorted(p for p in directory.rglob("*.json") if p.name in KEPT):
            text = scrubbed(json.dumps(_slim(path)), names).encode()
            member = tarfile.TarInfo(str(path.relative_to(directory)))
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    if len(packed.getvalue()) > MOST_BYTES:
        raise ValueError(f"{promise.script.stem}: {len(packed.getvalue())} bytes")
    promise.archive.parent.mkdir(exist_ok=True)
    promise.archive.write_bytes(packed.getvalue())


def _slim(path: Path) -> Any:
    """Without the environment and command lines of the machine."""
    document = read_json(path, {})
    if path.name == "proc.json":
        for child in document.get("children", []):
            child["command"] = ""
        document["fds"]["open"] = [row for row in document["fds"].get("open", []) if row["kind"] == "tcp"]
    return document
