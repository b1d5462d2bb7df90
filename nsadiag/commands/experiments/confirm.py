"""`nsadiag confirm`: the command of a run once more in rehearsal, so that an inferred cause is recorded, or refuted."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.analysis.verdict import judge_directory
from nsadiag.commands import output
from nsadiag.commands.run import name_of
from nsadiag.deadlines import programs
from nsadiag.errors import (
    EXIT_ENVIRONMENT,
    EXIT_FINDING,
    EXIT_HEALTHY,
    EXIT_USAGE,
    MachineError,
    UsageError,
    unwritable,
)
from nsadiag.evidence.layout import SCHEMA_VERSION, RunDir, read_json, write_json
from nsadiag.evidence.records import Because, Place, Verdict
from nsadiag.evidence.rehearsal.calls import Rehearsal
from nsadiag.evidence.rehearsal.confirmation import Confirmation
from nsadiag.evidence.secrets.command_line import is_shortened
from nsadiag.evidence.secrets.published import MASK
from nsadiag.printing import note
from nsadiag.repair.job import text_of
from nsadiag.reports.formats.registry import write_reports
from nsadiag.reports.load import load_report
from nsadiag.reports.model import RunReport
from nsadiag.source.archive import masked, read_sources
from nsadiag.source.model import SourceModel

AROUND_S = 120.0  # beyond the rehearsal's own limit: start-up, last snapshots and the verdict
STOP_S = 30.0
STDERR_BYTES = 65536
ELSEWHERE = "rehearse the job where it runs: nsadiag check -- CMD"
Line = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class ConfirmRequest:
    """A parsed `nsadiag confirm` line. `ranks`: how many, in the place of what the command says."""

    path: Path
    seconds: float = 60.0
    ranks: int | None = None
    out: Path | None = None
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """The answer, and how the rehearsal itself ended where it answered nothing."""

    run: Path
    found: Confirmation
    rehearsal: Rehearsal

    @property
    def exit_code(self) -> int:
        if self.found.answer == "cannot":
            return EXIT_USAGE if self.rehearsal.answer == "can't" else EXIT_ENVIRONMENT
        return EXIT_FINDING if self.found.answer == "refuted" else EXIT_HEALTHY

    def lines(self) -> Iterator[str]:
        """All of it, as a terminal shows it."""
        yield self.found.headline
        because = self.found.because
        for link in because.chain if because else ():
            yield f"  {link.at.file}:{link.at.line} ({link.how}): {link.because}"
            for value in link.values:
                said = ", ".join(f"{text} on rank {rank}" for rank, text in value.by_rank.items())
                yield f"    {value.name} = {said}"
        if because and because.origin != "unknown":
            yield f"  origin: {because.origin}"
        yield f"rehearsal: {self.found.directory}"

    def document(self) -> dict[str, Any]:
        """The same as one document."""
        about = {"schema_version": SCHEMA_VERSION, "kind": "confirm", "run": str(self.run)}
        return {**about, **self.found.to_json(), "rehearsal": self.rehearsal.answer}


@dataclass(frozen=True, kw_only=True)
class _Job:
    """The run's job, as it can be started again."""

    command: tuple[str, ...]
    cwd: Path
    env: dict[str, str]
    sources: dict[str, str]


def confirm_once(request: ConfirmRequest) -> Confirmed:
    """Raises NsadiagError where there is nothing to confirm, or the job cannot be started here; then nothing was started."""
    run = RunDir(path=request.path)
    verdict = _verdict(run)
    job, was_confirmed = _job(run), run.confirmation.exists()
    out = request.out or output.new_directory(f"{name_of(list(job.command))}-confirm")
    note(f"nsadiag: rehearsing the job of {request.path}, for {request.seconds:g} s at most")
    report = _rehearsed(request, job, out.absolute())
    rehearsal, again = report.rehearsal, report.verdict
    if rehearsal is None:
        raise MachineError(f"no answer from a rehearsal: {out} has no rehearsal.json", "see nsadiag doctor")
    found = compared(verdict, rehearsal, again, SourceModel(job.sources), str(report.directory))
    try:
        write_json(run.confirmation, found.to_json())
    except OSError as error:
        raise unwritable(error) from None
    if found.has_recorded or was_confirmed:
        judge_directory(request.path)
        if not run.cell.exists():  # the report on a cell is its matrix's
            write_reports(request.path)
    return Confirmed(run=request.path, found=found, rehearsal=rehearsal)


# -- the run ----------------------------------------------------------------------------------------


def _verdict(run: RunDir) -> Verdict:
    document = read_json(run.verdict)
    if not isinstance(document, dict):
        hint = "give one of its cells: DIR/cells/ID" if (run.path / "matrix.json").exists() else ""
        raise UsageError(f"no verdict.json in {run.path}", hint or "give the directory of a run")
    verdict = Verdict.from_json(document)
    if run.rehearsal.exists():
        raise UsageError(f"{run.path} is a rehearsal: what it could record is in its verdict")
    if verdict.outcome not in ("hung", "crashed"):
        raise UsageError(
            f"the verdict in {run.path} is {verdict.outcome}: it names no cause of a divergence",
            "confirm is for runs that hung or crashed",
        )
    earlier = read_json(run.confirmation, {})
    recorded = verdict.because is not None and verdict.because.how == "recorded"
    if recorded and not earlier:
        raise UsageError(f"the cause in {run.path} is on record already")
    if recorded and earlier.get("inferred"):
        return Verdict.from_json({**document, "because": earlier["inferred"]})
    return verdict


def _job(run: RunDir) -> _Job:
    about = read_json(run.cell, None) or read_json(run.run, {})
    command = tuple(about.get("command") or ())
    if isinstance(about.get("command"), str) or not command:
        raise UsageError(f"no command is recorded in {run.path}", ELSEWHERE)
    if is_shortened(command) or any(MASK in word for word in command):
        raise UsageError(
            "the run's command is not recorded whole, so it cannot be started again",
            "give what is long in a file and what is secret in a variable, and run the job again",
        )
    metas = [read_json(rank.meta, {}) for rank in run.ranks()]
    hosts = {str(meta.get("host")) for meta in metas if meta.get("host")} or {str(about.get("host", ""))}
    if len(hosts) > 1:
        raise UsageError(f"the job ran on several machines: {', '.join(sorted(hosts)[:3])}", ELSEWHERE)
    host = next(iter(hosts))
    if host and host != os.uname().nodename:
        raise UsageError(f"the run is of another machine: {host}", "confirm it there")
    cwd = next((Path(str(meta["cwd"])) for meta in metas if meta.get("cwd")), None)
    if cwd is None or not cwd.is_dir():
        raise UsageError(
            f"the directory in which the job was started is {'gone: ' + str(cwd) if cwd else 'unknown'}",
            ELSEWHERE,
        )
    sources = read_sources(run)
    _check_unchanged(sources)
    return _Job(command=command, cwd=cwd, env=about.get("env") or {}, sources=sources)


def _check_unchanged(sources: dict[str, str]) -> None:
    """Raises UsageError where a line of the verdict may mean another line by now."""
    for file, text in sources.items():
        now = text_of(Path(file))
        if now is None or masked(now) != text:
            raise UsageError(
                f"{file} {'is gone' if now is None else 'has changed'} since the run",
                "put back what the run had, or run the job again",
            )


# -- the rehearsal ----------------------------------------------------------------------------------


def _rehearsed(request: ConfirmRequest, job: _Job, out: Path) -> RunReport:
    line = [sys.executable, "-m", "nsadiag", "check", "--json", "--out", str(out)]
    line += ["--force"] if request.force else []
    line += ["--nproc", str(request.ranks)] if request.ranks else []
    line += ["--seconds", f"{request.seconds:g}", "--", *job.command]
    try:
        done = programs.run(
            line, seconds=request.seconds + AROUND_S, cwd=job.cwd, env={**os.environ, **job.env},
            grace_s=STOP_S, stderr_tail=STDERR_BYTES,
        )  # fmt: skip
        directory = Path(json.loads(done.stdout)["directory"])
    except (OSError, TimeoutError) as error:
        raise MachineError(f"no answer from a rehearsal: {error}", "see nsadiag doctor") from None
    except (ValueError, KeyError):
        said = done.stderr.strip().rpartition("nsadiag: ")[2] or f"exit code {done.returncode}"
        raise MachineError(
            f"no answer from a rehearsal: {said}", "try it by hand: nsadiag check -- CMD"
        ) from None
    report = load_report(directory)
    assert isinstance(report, RunReport)
    return report


# -- the comparison ---------------------------------------------------------------------------------


def compared(
    verdict: Verdict, rehearsal: Rehearsal, again: Verdict | None, code: SourceModel, directory: str
) -> Confirmation:
    """The rehearsal's account of the run's cause."""
    inferred = verdict.because

    def found(answer: str, why: str, because: Because | None = None) -> Confirmation:
        return Confirmation(
            answer=answer, why=why, directory=directory, inferred=inferred, because=because  # type: ignore[arg-type]
        )  # fmt: skip

    if rehearsal.answer not in ("differs", "raised") or again is None:
        return found("cannot", f"the rehearsal {_ended(rehearsal)}")
    recorded = again.because
    own, theirs = set(_lines_of(verdict)), {*_lines_of(again), *_lines_called(rehearsal)}
    named = {_line_of(inferred)} if inferred else set()
    chain = (
        {_line_of(link.at) for link in recorded.chain} if recorded and recorded.how == "recorded" else set()
    )
    if (named and chain & named) or _meet(code, chain, named):
        return found("confirmed", f"the rehearsal recorded what was inferred, at {_said(inferred)}", recorded)
    if not own & theirs and not chain & own:
        return found("cannot", f"the rehearsal failed elsewhere, at {_said(again.where)}: {again.summary}")
    if recorded is None or not chain:
        return found("cannot", "the rehearsal failed in the same place, and its paths do not tell why")
    if inferred is None:
        return found("recorded", f"the rehearsal recorded the cause, at {_said(recorded)}", recorded)
    return found(
        "refuted",
        f"the rehearsal failed in the same place and recorded another cause, at {_said(recorded)}, not {_said(inferred)}",
        recorded,
    )


def _meet(code: SourceModel, chain: set[Line], named: set[Line]) -> bool:
    """Whether lines of both are of one statement, which may have several."""
    for file, line in named:
        source = code.file(file)
        own = source.statement_at(line) if source else None
        if source and own is not None and any(source.statement_at(n) is own for f, n in chain if f == file):
            return True
    return False


def _ended(rehearsal: Rehearsal) -> str:
    said = {
        "agreed": "agreed: here the ranks made the same calls to the end, so the cause needs what is not here (data, size, GPUs, time)",
        "undecided": f"was undecided: {rehearsal.why}",
    }
    return said.get(rehearsal.answer, f"can't be made: {rehearsal.why}")


def _lines_of(verdict: Verdict) -> Iterator[Line]:
    """The places at which its ranks stood."""
    for place in (verdict.where, verdict.peers_at, verdict.stands_at):
        if place is not None and place.file and place.line:
            yield _line_of(place)


def _lines_called(rehearsal: Rehearsal) -> Iterator[Line]:
    for call in rehearsal.calls:
        if call.place.count(":") >= 2:
            file, line, _ = call.place.rsplit(":", 2)
            yield file, int(line) if line.isdigit() else 0


def _line_of(place: Any) -> Line:
    return str(place.file), int(place.line or 0)


def _said(place: Place | Because | Any) -> str:
    if place is None or not place.file:
        return "an unknown line"
    return f"{Path(place.file).name}:{place.line}"
