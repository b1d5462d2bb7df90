"""The failed run that is to be repaired: its verdict, its job, and the lines at which a repair is tried."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nsadiag.errors import UsageError
from nsadiag.evidence.layout import RunDir, read_json
from nsadiag.evidence.records import Verdict
from nsadiag.evidence.secrets.command_line import is_shortened
from nsadiag.evidence.secrets.published import MASK
from nsadiag.evidence.stacks import stacks_in
from nsadiag.repair import refusals
from nsadiag.repair.job import Job, check_sized, text_of
from nsadiag.repair.record import Site, site_of
from nsadiag.source.archive import masked, read_sources


@dataclass(frozen=True, kw_only=True)
class Origin:
    """`sites`: lines of the job's sources, by path below its folder, the likeliest first."""

    directory: Path
    verdict: Verdict
    job: Job
    sites: tuple[Site, ...]


def read_origin(path: Path) -> Origin:
    """Reads a run directory. Raises UsageError where there is nothing in it that can be repaired here."""
    run = RunDir(path=path)
    document = read_json(run.verdict)
    if not isinstance(document, dict):
        raise UsageError(f"no verdict.json in {path}", "give the directory of a run, or of a check")
    verdict = Verdict.from_json(document)
    about = read_json(run.run, {})
    refusals.check_host(str(about.get("host", "")))
    refusals.check_verdict(verdict)
    job = _job(run, tuple(about.get("command") or ()), verdict)
    sites = tuple(_within(job, _sites(run, verdict)))
    if not sites:
        named = verdict.where.file if verdict.where else None
        refusals.check_file(named or "", "")
        raise UsageError(
            f"no line of the job's sources is known: {named or 'the verdict names none'}", verdict.fix or ""
        )
    for file in dict.fromkeys(file for file, _ in sites):
        refusals.check_file(str(job.folder / file), job.sources[file])
    return Origin(directory=path, verdict=verdict, job=job, sites=sites)


def _job(run: RunDir, command: tuple[str, ...], verdict: Verdict) -> Job:
    if not command or is_shortened(command) or any(MASK in word for word in command):
        raise UsageError(
            "the run's command is not recorded whole, so it cannot be run again",
            "give what is long in a file and what is secret in a variable, and run the job again",
        )
    check_sized(command)
    meta: dict[str, object] = next((read_json(rank.meta, {}) for rank in run.ranks()), {})
    cwd = Path(str(meta.get("cwd", "")))
    if not meta.get("cwd") or not cwd.is_dir():
        raise UsageError("the directory in which the job was started is unknown or gone")
    kept = {file: text for file, text in read_sources(run).items() if not _is_installed(file)}
    now = {file: masked(text) for file in kept if (text := text_of(Path(file))) is not None}
    refusals.check_unchanged(kept, now)
    folder = Path(os.path.commonpath([cwd, *(Path(file).parent for file in kept)]))
    if folder == Path("/"):
        folder = cwd
    below = {
        os.path.relpath(file, folder): text_of(Path(file)) or ""
        for file in kept
        if Path(file).is_relative_to(folder)
    }
    return Job(command=command, cwd=cwd, folder=folder, ranks=verdict.world_size, sources=below)


def _is_installed(file: str) -> bool:
    return any(part in refusals.INSTALLED for part in Path(file).parts)


def _sites(run: RunDir, verdict: Verdict) -> Iterator[Site]:
    """The chain of causes first, then the verdict's lines, those of the calls that differ, and the stacks at the end."""
    cause = verdict.because
    if cause is not None and cause.file and cause.line:
        yield cause.file, cause.line
        yield from ((link.at.file, link.at.line) for link in cause.chain if link.at.file and link.at.line)
    for place in (verdict.where, verdict.peers_at):
        if place is not None and place.file and place.line:
            yield place.file, place.line
    for call in read_json(run.path / "rehearsal.json", {}).get("calls", ()):
        yield site_of(str(call.get("place", "")))
    for rank in run.ranks():
        for frame in read_json(rank.exception, {}).get("frames", ()):
            yield str(frame.get("file", "")), int(frame.get("line") or 0)
        for capture in rank.captures()[-1:]:
            for thread in stacks_in(capture):
                yield from ((frame.filename or "", frame.line or 0) for frame in thread.frames)


def _within(job: Job, sites: Iterator[Site]) -> Iterator[Site]:
    for file, line in dict.fromkeys(sites):
        path = os.path.relpath(file, job.folder) if file.startswith("/") else file
        if path in job.sources and line > 0:
            yield path, line
