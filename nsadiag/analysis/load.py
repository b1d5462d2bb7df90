"""The evidence of one job, from a run directory or from what other tools left."""

from __future__ import annotations

import shlex
from pathlib import Path

from nsadiag.analysis.external.inputs.listing import check_paths
from nsadiag.analysis.external.load import load_attempts
from nsadiag.analysis.facts.interruptions import interrupted_by_others
from nsadiag.analysis.ingest.run_directory import read_cell
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.scale.digests.chosen import chosen_in
from nsadiag.errors import UsageError
from nsadiag.evidence.layout import COLLECTED, RunDir, read_json

OURS = ("run.json", "cell.json", "watch.json", "verdict.json")
# Of each node; a folder called `nodes` alone may be anybody's.
OF_NODES = (
    "launcher.json",
    "launcher.stderr.log",
    "watch.json",
    "clock.json",
    "look.json",
    "oom.json",
    "captures",
)


def is_run_directory(path: Path) -> bool:
    """Whether nsadiag wrote the directory, of a job that it recorded. Raises UsageError for one of `analyze --out`."""
    if not path.is_dir():
        return False
    if paths := judged_paths(path):
        again = shlex.join(map(str, paths))
        raise UsageError(
            f"{path} holds a verdict on {again}, and no evidence",
            f"nsadiag report {path} shows it, nsadiag analyze {again} judges again",
        )
    ranks = path / "ranks"
    own = ranks.is_dir() and any(len(p.name) == 5 and p.name.isdigit() for p in ranks.iterdir())
    names = (*OURS, *(f"nodes/*/{name}" for name in OF_NODES))
    return own or any(True for name in names for _ in path.glob(name))


def judged_paths(path: Path) -> tuple[Path, ...]:
    """Paths that `analyze --out` judged, of the directory that it wrote; nothing of any other."""
    document = read_json(RunDir(path=path).run, {})
    paths = document.get("paths") if document.get("kind") == COLLECTED else None
    return tuple(map(Path, map(str, paths))) if isinstance(paths, list) else ()


def load_run(path: Path) -> CellEvidence:
    """The evidence in a directory of nsadiag's, whatever is missing in it; of very many ranks that of those that matter."""
    return interrupted_by_others(read_cell(path, chosen_in(RunDir(path=path))))


def load_collected(*paths: Path) -> tuple[CellEvidence, ...]:
    """Evidence of other tools, by attempt, the last one last. Raises UsageError where none of it is evidence."""
    check_paths(paths)
    for path in paths:
        if is_run_directory(path):
            raise UsageError(
                f"{path} is a run directory: it is judged alone",
                "give one run directory, or files of other tools",
            )
    return load_attempts(paths)


def _is_ours(path: Path) -> bool:
    """Whether a run directory is to be read, if only an empty one."""
    return path.is_dir() and (is_run_directory(path) or not any(path.iterdir()))


def load_cell(*paths: Path) -> CellEvidence:
    """The evidence in a run directory, or in what other tools left, of several attempts the last.

    Raises UsageError where there are files, and none of them is evidence.
    """
    path = paths[0]
    if len(paths) == 1 and _is_ours(path):
        return load_run(path)
    return load_collected(*paths)[-1]
