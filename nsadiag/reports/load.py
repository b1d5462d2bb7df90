"""Reads a run or matrix directory into a report; what is missing or half written becomes a gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nsadiag.evidence.documents.files import read_tail
from nsadiag.evidence.documents.types import Gaps, fitting, read_value
from nsadiag.evidence.layout import COLLECTED, RankDir, RunDir, read_json
from nsadiag.evidence.phrases import TIME_PARTS, count
from nsadiag.evidence.records import Verdict
from nsadiag.evidence.rehearsal.calls import Rehearsal
from nsadiag.evidence.rehearsal.repair import Repair
from nsadiag.evidence.secrets.masking import mask_text, mask_variables
from nsadiag.evidence.secrets.published import mask_likely
from nsadiag.reports import history, values
from nsadiag.reports.model import Axis, CellReport, Costs, MatrixReport, RankReport, Report, RunReport

if TYPE_CHECKING:
    from nsadiag.analysis.records import CellEvidence

T = TypeVar("T")
# The tail of a guilty rank's stderr holds its traceback; more belongs to the log itself.
LAST_WORDS_BYTES = 4096
LAST_WORDS_LINES = 20


def load_report(*paths: Path) -> Report:
    """The report on a run or matrix directory, or on evidence that other tools left. Raises UsageError where there is none."""
    kind = _kind(paths[0]) if len(paths) == 1 else COLLECTED
    if kind == "matrix":
        return _load_matrix(paths[0])
    return _load_run(paths[0]) if kind == "run" else load_collected(*paths)


def load_collected(*paths: Path) -> RunReport:
    """The report on files that nsadiag did not write, judged here: nothing is written beside them. Raises UsageError."""
    from nsadiag.analysis import load, verdict  # all rules come with it

    attempts = load.load_collected(*paths)
    found, cell = verdict.judge_attempts(attempts), attempts[-1]
    seen = cell.collected
    return RunReport(
        directory=cell.path,
        given=paths,
        collected=cell,
        name=_name_of(paths),
        world_size=found.world_size,
        versions=dict(seen.versions) if seen else {},
        environment=mask_variables(seen.settings) if seen else {},
        verdict=found,
    )


def cell_of(run: RunReport) -> CellEvidence:
    """The evidence behind a report. Raises UsageError."""
    from nsadiag.analysis.load import load_cell, load_run

    if run.collected:
        return run.collected
    first = run.evidence[0]
    # The report says what is known of a cell whose directory is gone.
    return load_cell(*run.evidence) if first.exists() else load_run(first)


def _name_of(paths: Sequence[Path]) -> str:
    first = "stdin" if str(paths[0]) == "-" else paths[0].resolve().name
    return first if len(paths) == 1 else f"{first} and {count(len(paths) - 1, 'other path')}"


def _kind(directory: Path) -> str:
    if not directory.is_dir():
        return COLLECTED
    kind = read_json(directory / "run.json", {}).get("kind")
    if kind == COLLECTED:
        return "run"
    if kind in ("run", "matrix"):
        return str(kind)
    if (directory / "matrix.json").exists() or (directory / "cells").is_dir():
        return "matrix"
    if any((directory / name).exists() for name in ("run.json", "verdict.json", "cell.json", "ranks")):
        return "run"
    return COLLECTED


def _load_run(directory: Path) -> RunReport:
    gaps: list[str] = []
    # A cell of a matrix may describe itself in cell.json instead.
    only_cell = (directory / "cell.json").exists() and not (directory / "run.json").exists()
    document = _document(directory / ("cell.json" if only_cell else "run.json"), gaps)
    verdict = _verdict(_document(directory / "verdict.json", gaps), gaps)
    return _run(directory, document, verdict, gaps)


def _run(directory: Path, document: dict[str, Any], verdict: Verdict | None, gaps: list[str]) -> RunReport:
    started_at, ended_at = values.text(document.get("started_at")), values.text(document.get("ended_at"))
    code = values.mapping(document.get("code"))
    failed = verdict is not None and verdict.outcome != "healthy"
    paths = document.get("paths") if document.get("kind") == COLLECTED else None
    return RunReport(
        directory=directory,
        given=tuple(map(Path, map(str, paths))) if isinstance(paths, list) else (),
        code=history.commit_text(values.text(code.get("commit")), changed=code.get("changed") is True),
        again=history.told_of(directory) if failed else "",
        name=values.text(document.get("name")) or directory.resolve().name,
        command=values.command(document.get("command")),
        started_at=started_at,
        ended_at=ended_at,
        duration_s=values.seconds_between(started_at, ended_at),
        host=values.text(document.get("host")),
        exit_code=values.whole(read_json(RunDir(path=directory).watch, {}).get("launcher_exit_code")),
        world_size=verdict.world_size if verdict else values.whole(document.get("world_size")),
        versions=values.texts(document.get("versions")),
        environment=values.texts(document.get("environment")),
        verdict=verdict,
        rehearsal=_read(Rehearsal, RunDir(path=directory).rehearsal, gaps),
        repair=_read(Repair, RunDir(path=directory).repair, gaps),
        ranks=_ranks(RunDir(path=directory), verdict, gaps),
        gaps=tuple(gaps),
    )


def _read(cls: type[T], path: Path, gaps: list[str]) -> T | None:
    unfit: Gaps = []
    found = read_value(cls, path, unfit)
    gaps += map(str, unfit)
    return found


def _ranks(run_dir: RunDir, verdict: Verdict | None, gaps: list[str]) -> tuple[RankReport, ...]:
    unfit: Gaps = []
    ends = read_json(run_dir.ends, {}, unfit)
    gaps += map(str, unfit)
    guilty = verdict.guilty if verdict else frozenset[int]()
    seen = {rank_dir.rank for rank_dir in run_dir.ranks()}
    seen |= set(map(int, ends))
    return tuple(
        _rank(run_dir, rank, values.mapping(ends.get(str(rank))), rank in guilty) for rank in sorted(seen)
    )


def _rank(run_dir: RunDir, rank: int, end: Mapping[str, Any], guilty: bool) -> RankReport:
    rank_dir = run_dir.rank(rank)
    logs = [p for p in (rank_dir.stdout, rank_dir.stderr) if p.exists() and p.stat().st_size]
    return RankReport(
        rank=rank,
        exit_code=values.whole(end.get("exit_code")),
        signal=values.signal_name(end.get("signal")),
        t_s=values.number(end.get("t_s")),
        how=values.text(end.get("how")),
        by_us=end.get("by_us") is True,
        captures=len(rank_dir.captures()),
        logs=tuple(str(p.relative_to(run_dir.path)) for p in logs),
        last_words=_last_words(rank_dir) if guilty else "",
    )


def _last_words(rank_dir: RankDir) -> str:
    """The end of stderr, whole lines only."""
    try:
        told = read_tail(rank_dir.stderr, LAST_WORDS_BYTES + 1)
    except OSError:
        return ""
    lines = told[-LAST_WORDS_BYTES:].decode("utf-8", "replace").splitlines()
    whole = lines[1:] if len(told) > LAST_WORDS_BYTES else lines
    # Also by name and looks: the log is as the job wrote it, and who reports on it may not know the job's secrets.
    return mask_likely(mask_text("\n".join(whole[-LAST_WORDS_LINES:])))


def _load_matrix(directory: Path) -> MatrixReport:
    # Most reports are of a run, and need none of this.
    from nsadiag.reports import load_claims
    from nsadiag.reports.scaling import scaling_of

    gaps: list[str] = []
    run = _run(directory, _document(directory / "run.json", gaps), None, [])
    document = _document(directory / "matrix.json", gaps)
    listed = [cell for cell in values.items(document.get("cells")) if cell.get("id")]
    cells = tuple(_cell(directory, cell) for cell in listed or _cells_on_disk(directory))
    return MatrixReport(
        directory=directory,
        name=values.text(document.get("name")) or run.name,
        run=run,
        axes=_axes(document, cells),
        cells=cells,
        wall_s=values.number(values.mapping(document.get("totals")).get("wall_s")) or run.duration_s,
        machine=values.texts(document.get("machine")),
        gaps=tuple(gaps),
        claims=load_claims.claims(document),
        causes=load_claims.causes(document),
        parity=load_claims.parity(document),
        documents={key: document[key] for key in load_claims.DOCUMENTS if document.get(key)},
        scaling=scaling_of(document),
    )


def _cells_on_disk(directory: Path) -> list[dict[str, Any]]:
    """The cells from their folders, where matrix.json cannot be read: a cell's id is `axis=value,axis=value`."""
    folder = directory / "cells"
    names = sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
    return [{"id": name, "factors": _factors_in(name), "state": "done"} for name in names]


def _factors_in(cell_id: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in cell_id.split(","))
    return {axis: value for axis, equals, value in pairs if equals}


def _cell(directory: Path, document: Mapping[str, Any]) -> CellReport:
    cell_id = str(document["id"])
    gaps: list[str] = []
    state = values.text(document.get("state")) or "done"
    # The id names a folder, and a document from elsewhere must not lead us out of ours.
    folder = directory / "cells" / Path(cell_id).name
    unfit: Gaps = []
    verdict_document = fitting("verdict.json", document.get("verdict"), {}, unfit)
    gaps += map(str, unfit)
    if not verdict_document and state == "done":
        verdict_document = _document(folder / "verdict.json", gaps)
    described = values.mapping(read_json(folder / "run.json") or read_json(folder / "cell.json"))
    run = _run(folder, {**described, "name": cell_id}, _verdict(verdict_document, gaps), gaps)
    return CellReport(
        id=cell_id,
        factors=values.texts(document.get("factors")) or _factors_in(cell_id),
        state=state,
        world_size=values.whole(document.get("world_size")) or run.world_size,
        wall_s=values.number(document.get("wall_s")),
        launch=values.text(document.get("launch")),
        costs=_costs(values.mapping(document.get("costs"))),
        run=run,
    )


def _costs(document: Mapping[str, Any]) -> Costs:
    return Costs(
        step_s_median=values.number(document.get("step_s_median")),
        forward_s_median=values.number(document.get("forward_s_median")),
        backward_s_median=values.number(document.get("backward_s_median")),
        parts={
            part: seconds
            for part in TIME_PARTS
            if (seconds := values.number(document.get(f"{part}_s_mean"))) is not None
        },
        peak_rss_mib=values.number(document.get("peak_rss_mib")),
        steps=values.whole(document.get("steps")),
    )


def _axes(document: Mapping[str, Any], cells: tuple[CellReport, ...]) -> tuple[Axis, ...]:
    """The axes as written, completed by labels that only cells mention."""
    known: dict[str, dict[str, None]] = {}
    bases: dict[str, str] = {}
    for axis in values.items(document.get("axes")):
        labels = axis.get("values")
        known[str(axis.get("name"))] = dict.fromkeys(map(str, labels if isinstance(labels, list) else []))
        bases[str(axis.get("name"))] = values.text(axis.get("base")) or ""
    for cell in cells:
        for name, label in cell.factors.items():
            known.setdefault(name, {}).setdefault(label, None)
    return tuple(
        Axis(name=name, values=tuple(labels), base=bases.get(name, "")) for name, labels in known.items()
    )


def _document(path: Path, gaps: list[str]) -> dict[str, Any]:
    unfit: Gaps = []
    document = read_json(path, None, unfit)
    gaps += map(str, unfit) if unfit or document else [f"{path.name} is missing"]
    return document or {}


def _verdict(document: Mapping[str, Any], gaps: list[str]) -> Verdict | None:
    if not document:
        return None
    try:
        return Verdict.from_json(dict(document))
    except KeyError as error:
        gaps.append(f"verdict.json lacks {error}")
    except (TypeError, AttributeError, ValueError) as error:
        gaps.append(f"verdict.json has an unexpected shape: {error}")
    return None
