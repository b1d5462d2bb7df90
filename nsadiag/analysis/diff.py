"""Two runs, or two ranks, side by side: environment, versions, settings, verdict, timing, parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import CellEvidence, RankEvidence
from nsadiag.errors import UsageError
from nsadiag.evidence import table
from nsadiag.evidence.documents.training import Settings, Table
from nsadiag.evidence.layout import RankDir, RunDir, read_json
from nsadiag.evidence.phrases import TIME_PARTS
from nsadiag.evidence.spans import spans

Section = Literal["run", "versions", "environment", "settings", "verdict", "timing", "parameters"]
# Set anew for every process, or by nsadiag itself.
OF_THE_PROCESS = re.compile(
    r"^(\w*_)?(RANK|WORLD_SIZE|PORT|PROCID|LOCALID|NODEID)$|^(NSADIAG|TORCHELASTIC|SLURM)_|^PYTHONPATH$|^TORCH_FR_|_DIR$|_PIPE_FILE$"
)
UNKNOWN = Settings()
NOT_SETTINGS = {"environment", "versions", "t_wall_ns", "step", "when"}
TIMES = {"step_s": "step, s", **{f"{part}_s": f"{words}, s" for part, words in TIME_PARTS.items()}}
# Sums of parameters are taken in double: what differs by more was trained differently.
TOLERANCE = 1e-6
SHOWN = 20  # parameters


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that was compared. `a`, `b`: None where that side has it not."""

    section: Section
    name: str
    a: Any
    b: Any
    differs: bool
    ratio: float | None = None  # b to a, of what is a number

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Side:
    """A run, a cell, or the ranks of it that were asked for."""

    path: Path
    cell: CellEvidence
    ranks: tuple[RankEvidence, ...]
    alone: bool  # one rank of a run
    judged: Table | None = None  # the verdict, of evidence that has none beside it

    @property
    def run(self) -> Table:
        if told := self.cell.collected:
            return {"versions": dict(told.versions), "environment": dict(told.settings)}
        return dict(read_json(RunDir(path=self.cell.path).run, {}))

    @property
    def verdict(self) -> Table:
        if self.judged is not None:
            return self.judged
        return dict(read_json(RunDir(path=self.cell.path).verdict, {}))


def side(path: Path) -> Side:
    """The subject at the path: a run directory, a cell, or `RUN/ranks/NNNNN`. Raises UsageError."""
    if not path.is_dir():
        cell = load_cell(path)
        return Side(path=path, cell=cell, ranks=cell.ranks, alone=False)
    path = path.resolve()
    if (path / "matrix.json").exists():
        raise UsageError(f"{path} is a matrix", f"give one of its cells: {path / 'cells'}")
    if path.parent.name == "ranks" and path.name.isdigit():
        cell = load_cell(path.parent.parent)
        number = RankDir(path=path).rank
        return Side(path=path, cell=cell, ranks=tuple(r for r in cell.ranks if r.rank == number), alone=True)
    cell = load_cell(path)
    if not cell.ranks and not (path / "run.json").exists():
        raise UsageError(
            f"{path} holds no run", "give a run directory, a cell of a matrix, or RUN/ranks/00000"
        )
    return Side(path=path, cell=cell, ranks=cell.ranks, alone=False)


def compare(a: Side, b: Side) -> list[Row]:
    """Every row that was compared, those that agree as well."""
    same_run = a.alone and b.alone and a.cell.path == b.cell.path
    rows: list[Row] = []
    if not same_run:
        rows += _of_runs(a, b)
    rows += _of_documents("versions", _merged(a, "versions"), _merged(b, "versions"))
    rows += _of_documents("environment", _environment(a), _environment(b))
    rows += _of_documents("settings", _settings(a), _settings(b))
    if not same_run:
        rows += _of_documents("verdict", _verdict(a), _verdict(b))
    return [*rows, *_timing(a, b), *_parameters(a, b)]


def matters(rows: list[Row]) -> bool:
    """Whether anything differs that is not a matter of the clock alone."""
    return any(row.differs and row.section != "timing" for row in rows)


def _of_runs(a: Side, b: Side) -> Iterator[Row]:
    shown = [
        {
            "command": " ".join(s.run.get("command", ())) or None,
            "host": s.run.get("host"),
            "commit": (s.run.get("code") or {}).get("commit"),
            "world size": s.cell.world_size,
            **s.run.get("machine", {}),
        }
        for s in (a, b)
    ]
    # Where and by which name something was started says nothing of what it did.
    for row in _of_documents("run", *shown):
        yield row if row.name not in ("command", "host") else Row(**{**asdict(row), "differs": False})


def _of_documents(section: Section, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Row]:
    for name in dict.fromkeys((*a, *b)):
        yield Row(
            section=section, name=name, a=a.get(name), b=b.get(name), differs=a.get(name) != b.get(name)
        )


def _flat(document: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by their dotted names; an empty container is a leaf."""
    if isinstance(document, dict) and document:
        for key, value in document.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(document, list | tuple) and document and isinstance(document[0], dict):
        for number, value in enumerate(document):
            yield from _flat(value, f"{prefix}[{number}]")
    else:
        yield prefix, list(document) if isinstance(document, tuple) else document


def _by_value(documents: Mapping[int, Mapping[str, Any]]) -> Table:
    """One value where all ranks have it, else which ranks have which."""
    found: Table = {}
    for name in dict.fromkeys(name for document in documents.values() for name in document):
        ranks: dict[str, list[int]] = {}
        for rank, document in documents.items():
            ranks.setdefault(str(document.get(name)), []).append(rank)
        values = [document.get(name) for document in documents.values()]
        alike = len(ranks) == 1
        found[name] = values[0] if alike else "; ".join(f"{v} (rank {spans(r)})" for v, r in ranks.items())
    return found


def _merged(side: Side, key: str) -> Table:
    own = {} if side.alone else dict(side.run.get(key, {}))
    return own | _by_value(
        {r.rank: dict(getattr(r.settings, key) or {}) for r in side.ranks if r.settings != UNKNOWN}
    )


def _environment(side: Side) -> Table:
    own = {} if side.alone else dict(side.run.get("environment", {}))
    found = own | _merged(side, "environment")
    return {name: value for name, value in found.items() if not OF_THE_PROCESS.search(name)}


def _settings(side: Side) -> Table:
    documents = {
        r.rank: dict(
            _flat({k: v for k, v in asdict(r.settings).items() if v is not None and k not in NOT_SETTINGS})
        )
        for r in side.ranks
        if r.settings != UNKNOWN
    }
    return _by_value(documents)


def _verdict(side: Side) -> Table:
    verdict = side.verdict
    where = verdict.get("where") or {}
    place = f"{where['file']}:{where['line']}" if where.get("file") else None
    keys = ("outcome", "class", "certainty", "guilty_ranks", "signature")
    act = (verdict.get("action") or {}).get("do")
    return {key: verdict.get(key) for key in keys} | {"where": place, "action": act} if verdict else {}


def _timing(a: Side, b: Side) -> Iterator[Row]:
    tables = [_steps(a), _steps(b)]
    counts = [t.groupby("rank").step.nunique().max() if len(t) else 0 for t in tables]
    yield Row(section="timing", name="steps seen", a=counts[0], b=counts[1], differs=False)
    for column, name in TIMES.items():
        first, second = (t[column] for t in tables)
        if not first.known or not second.known:
            continue
        low, high = ((s.quantile(0.25), s.median(), s.quantile(0.75)) for s in (first, second))
        yield Row(
            section="timing",
            name=name,
            a=round(float(low[1]), 6),
            b=round(float(high[1]), 6),
            # Not by the medians alone: steps waver.
            differs=bool(low[2] < high[0] or high[2] < low[0]),
            ratio=round(float(high[1] / low[1]), 3) if low[1] > 0 else None,
        )
    peaks = [_peak_mib(s) for s in (a, b)]
    if all(peaks):
        yield Row(
            section="timing", name="peak resident memory, MiB", a=peaks[0], b=peaks[1],
            differs=abs(peaks[1] / peaks[0] - 1) > 0.1, ratio=round(peaks[1] / peaks[0], 3),
        )  # fmt: skip


def _steps(side: Side) -> table.Table:
    """Step times of the ranks asked for, without the first step, which builds and warms up."""
    steps = Case(side.cell).parts
    mine = steps[steps["rank"].isin([r.rank for r in side.ranks])]
    return mine[mine.step > mine.groupby("rank").step.transform("min")]


def _peak_mib(side: Side) -> float:
    peaks = [float(r.meta.memory.get("resident_peak_kib") or 0) for r in side.ranks]
    return round(max(peaks, default=0.0) / 1024, 1)


def _sums(side: Side) -> dict[tuple[int, str], tuple[float, float]]:
    """By step and parameter: the sum of its first elements, and of their magnitudes; of the lowest rank that has it."""
    found: dict[tuple[int, str], tuple[float, float]] = {}
    for rank in side.ranks:
        for row in rank.replicas:
            for name, _shape, total, magnitude in row.parameters:
                found.setdefault((row.step, name), (float(total), float(magnitude)))
    return found


def _parameters(a: Side, b: Side) -> Iterator[Row]:
    """After the steps at which both sides were summed up, parameter by parameter; the earliest that differ first."""
    ours, theirs = _sums(a), _sums(b)
    both = sorted(set(ours) & set(theirs))
    parted = [key for key in both if _differ(ours[key], theirs[key])]
    if both and not parted:
        steps = ", ".join(map(str, sorted({step for step, _ in both})))
        yield Row(section="parameters", name=f"sums after steps {steps}", a="equal", b="equal", differs=False)
    for step, name in parted[:SHOWN]:
        values = ours[step, name][0], theirs[step, name][0]
        yield Row(
            section="parameters",
            name=f"sum of {name} after step {step}",
            a=values[0],
            b=values[1],
            differs=True,
        )


def _differ(a: tuple[float, float], b: tuple[float, float]) -> bool:
    scale = max(a[1], b[1], 1e-30)
    return not abs(a[0] - b[0]) <= TOLERANCE * scale or not abs(a[1] - b[1]) <= TOLERANCE * scale
