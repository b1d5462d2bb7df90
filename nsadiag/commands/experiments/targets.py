"""The target of `nsadiag shrink`: the start and the failure of a job, from the directory of a run or cell."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsadiag.errors import UsageError
from nsadiag.evidence.layout import RunDir, read_json
from nsadiag.evidence.records import Verdict
from nsadiag.evidence.secrets.command_line import is_shortened
from nsadiag.evidence.secrets.published import MASK
from nsadiag.experiments.shrink import Target
from nsadiag.experiments.trial import Job
from nsadiag.spec import Cell, Matrix

TORCHRUN = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
SIZE = ("--nproc-per-node", "--nproc_per_node")
FLAGS = {"--standalone", "--no-python", "--no_python", "-m", "--module", "--use-env", "--use_env"}


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A run or a cell, with the matrix that the cell is of."""

    directory: Path
    verdict: Verdict
    job: Job  # as it was started: its first words may be `-m module`
    matrix: Matrix | None = None
    factors: Mapping[str, str] = field(default_factory=dict)


def find_origin(path: Path) -> Origin:
    """Reads a directory with a verdict in it. Raises UsageError where nothing failed there, or nothing can be run again."""
    document = read_json(RunDir(path=path).verdict)
    if not isinstance(document, dict):
        hint = "give the directory of a run, or cells/ID of a matrix"
        if (path / "matrix.json").exists():
            hint = f"it is a matrix: give one of its cells, as in {path}/cells/ID"
        raise UsageError(f"no verdict.json in {path}", hint)
    verdict = Verdict.from_json(document)
    if verdict.outcome in ("healthy", "incomplete", "unknown"):
        raise UsageError(
            f"the verdict in {path} is {verdict.outcome}: there is no failure to keep",
            "shrink needs a run that hung, crashed, was slow or went wrong",
        )
    origin = _of_cell(path, verdict) if (path / "cell.json").exists() else _of_run(path, verdict)
    if is_shortened(origin.job.argv):
        raise UsageError(
            "the recorded command was too long to be kept whole, so it cannot be run again",
            "give what is long in a file, and run the job again",
        )
    if any(MASK in word for word in (*origin.job.argv, *origin.job.env.values())):
        raise UsageError(
            "a secret was masked in the recorded command, so it cannot be run again",
            "give the secret by an environment variable, and run the job again",
        )
    return origin


def _of_run(path: Path, verdict: Verdict) -> Origin:
    command = read_json(RunDir(path=path).run, {}).get("command") or []
    return Origin(directory=path, verdict=verdict, job=job_of(command, _cwd(path)))


def _of_cell(path: Path, verdict: Verdict) -> Origin:
    cell = read_json(path / "cell.json", {})
    job = job_of(cell.get("command") or [], _cwd(path), env=cell.get("env") or _env_of(path, cell))
    spec = read_json(path.parent.parent / "run.json", {}).get("spec")
    matrix = Matrix.model_validate(spec) if isinstance(spec, dict) else None
    return Origin(directory=path, verdict=verdict, job=job, matrix=matrix, factors=cell.get("factors") or {})


def _env_of(path: Path, cell: Mapping[str, Any]) -> dict[str, str]:
    """An older cell.json names no environment once its cell is done: the spec does."""
    spec = read_json(path.parent.parent / "run.json", {}).get("spec")
    if not isinstance(spec, dict):
        return {}
    same = (
        c
        for c in Matrix.model_validate(spec).cells()
        if c.factors == _without_repeat(cell.get("factors") or {})
    )
    return next((dict(c.env) for c in same), {})


def _without_repeat(factors: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in factors.items() if name != "repeat"}


def _cwd(path: Path) -> Path:
    """The directory in which the job was started, or the current one where that is unknown or missing."""
    for rank in RunDir(path=path).ranks():
        found = read_json(rank.meta, {}).get("cwd")
        if isinstance(found, str) and Path(found).is_dir():
            return Path(found)
    return Path.cwd()


def job_of(command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> Job:
    """The job of a launcher line: torchrun on one machine, or Python alone. Raises UsageError for any other."""
    words = list(command)
    while words and "=" in words[0] and not words[0].startswith("-"):
        words.pop(0)
    if words and _is_python(words[0]):
        words = words[1:]
        if words[:1] == ["-m"] and len(words) > 1 and words[1] in TORCHRUN:
            words = words[1:]
        else:
            return Job(argv=tuple(words), env=dict(env or {}), launcher=(command[0],), cwd=cwd)
    if not words or Path(words[0]).name not in TORCHRUN:
        raise UsageError(
            f"cannot take apart: {shlex.join(command) or 'no command'}",
            "shrink knows torchrun on one machine, and python SCRIPT",
        )
    return _of_torchrun(words[1:], cwd, dict(env or {}), command)


def _is_python(word: str) -> bool:
    return Path(word).name.startswith("python")


def _of_torchrun(words: list[str], cwd: Path, env: dict[str, str], command: Sequence[str]) -> Job:
    size, place, module = "1", 0, False
    while place < len(words) and words[place].startswith("-"):
        name, equals, value = words[place].partition("=")
        module = module or name in ("-m", "--module")
        if name in FLAGS:
            place += 1
            continue
        value = value if equals else (words[place + 1] if place + 1 < len(words) else "")
        size = value if name in SIZE else size
        if name in ("--nnodes",) and value not in ("1", "1:1"):
            raise UsageError(
                "the job ran on several machines", "shrink starts candidates on this machine alone"
            )
        place += 1 if equals else 2
    if not size.isdigit() or place >= len(words):
        raise UsageError(f"cannot take apart: {shlex.join(command)}", "give --nproc-per-node as a number")
    argv = (("-m",) if module else ()) + tuple(words[place:])
    return Job(argv=argv, world_size=int(size), env=env, cwd=cwd)


def target_of(job: Job, verdict: Verdict) -> Target:
    """The script that the job runs, found on disk, and where its modules are looked for."""
    cwd = job.cwd or Path.cwd()
    roots: tuple[Path, ...]
    if job.argv[:1] == ("-m",):
        script = _module_file(job.argv[1], cwd)
        words, roots = job.argv[2:], (cwd,)
    else:
        script = (cwd / job.argv[0]).resolve()
        words, roots = job.argv[1:], (script.parent, cwd)
    if not script.is_file() or script.suffix != ".py":
        raise UsageError(f"no such script: {script}", "is it another machine's run?")
    import dataclasses

    named = dataclasses.replace(job, argv=(str(script), *words))
    return Target(
        script=script, job=named, roots=tuple(dict.fromkeys((*roots, *_python_path()))), verdict=verdict
    )


def _python_path() -> list[Path]:
    import os

    return [Path(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and Path(p).is_dir()]


def _module_file(name: str, cwd: Path) -> Path:
    parts = name.split(".")
    for root in (cwd, *_python_path()):
        for path in (root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__main__.py")):
            if path.is_file():
                return path.resolve()
    raise UsageError(f"no module {name} below {cwd}", "start nsadiag where the job was started")


def cell_job(cell: Cell, cwd: Path | None) -> Job:
    return Job(argv=tuple(cell.argv), world_size=cell.world_size, env=cell.env, cwd=cwd)
