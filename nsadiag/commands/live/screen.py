"""`nsadiag top` as a screen: a header, the ranks with who is behind first, and keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Group, RenderableType
from rich.measure import Measurement
from rich.table import Table

from nsadiag.analysis.snapshot import RankNow
from nsadiag.evidence.layout import read_json
from nsadiag.evidence.phrases import count, rate
from nsadiag.evidence.spans import spans
from nsadiag.reports.terminal.screen import Screen
from nsadiag.reports.terminal.text import Text
from nsadiag.reports.words import NOT_KNOWN, duration, mark_of, percent, roughly

MOST_LISTED = 20  # letters
QUIET_S = 5.0  # from here on a silence is worth a colour
LEAST_ROWS = 3
NUMBERS = ("rank", "step", "steps/s", "quiet", "waited for", "compute", "waiting")
TITLES = (
    "cell",
    "rank",
    "step",
    "steps/s",
    "quiet",
    "waited for",
    "compute",
    "waiting",
    "doing",
    "at",
    "last event",
)
# Where the terminal is too narrow for all, the first of these first.
SPARED = ("last event", "compute", "steps/s", "waiting", "doing", "quiet", "waited for")
ORDERS = {"b": "who is behind first", "w": "who is waited for first", "r": "by rank"}
HELP = (
    "b: who is behind first   w: who is waited for first   r: by rank",
    "up, down, page up, page down, home, end (j, k, space): scroll",
    "p: pause   q, Ctrl-C: leave   ?: these keys",
    "compute, waiting: shares of the steps of the last 30 s, as in the report",
)
Row = tuple[str, RankNow]


@dataclass
class View:
    """The order, the place and the mode of the screen."""

    order: str = "b"
    first: int = 0  # row
    is_paused: bool = False
    has_help: bool = False

    def press(self, key: str, *, page: int) -> bool:
        """Whether to go on."""
        moves = {"up": -1, "down": 1, "page up": -page, "page down": page, "home": -(10**9), "end": 10**9}
        if key == "q":
            return False
        if key in ORDERS:
            self.order, self.first = key, 0
        elif key == "p":
            self.is_paused = not self.is_paused
        elif key == "?":
            self.has_help = not self.has_help
        elif key in moves:
            self.first += moves[key]
        return True


@dataclass(frozen=True, kw_only=True)
class Job:
    """The run as a whole; the matrix, of a cell."""

    name: str
    state: str  # running, ended, or an outcome
    says: str = ""  # the verdict's summary
    elapsed_s: float | None = None
    hosts: Sequence[str] = field(default_factory=tuple)


def job_of(directory: Path, rows: Sequence[Row]) -> Job:
    """By run.json and verdict.json, and its ranks."""
    run, verdict = read_json(directory / "run.json", {}), read_json(directory / "verdict.json", {})
    living = any(not rank.ended for _, rank in rows)
    started, ended = _moment(run.get("started_at")), _moment(run.get("ended_at"))
    until = datetime.now(timezone.utc) if living or ended is None else ended
    return Job(
        name=str(run.get("name") or directory.resolve().name),
        state=str(verdict.get("outcome") or ("running" if living else "ended")),
        says=str(verdict.get("summary") or ""),
        elapsed_s=(until - started).total_seconds() if started else None,
        hosts=sorted({rank.host for _, rank in rows if rank.host}),
    )


def _moment(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text)).astimezone(timezone.utc)
    except ValueError:
        return None


def screen_of(
    rows: Sequence[Row], job: Job, view: View, console: Screen, *, line_of: Callable[[int], str], height: int
) -> Group:
    """The header, as many rows as there is room for, and the foot."""
    head = header(rows, job, console)
    ordered = in_order(rows, view.order)
    foot = [*(HELP if view.has_help else ())]
    room = max(height - len(head) - len(foot) - 3, LEAST_ROWS)
    view.first = max(0, min(view.first, len(ordered) - room))
    shown = ordered[view.first : view.first + room]
    parts: list[RenderableType] = [*head, Text(), table_of(shown, rows, console, line_of=line_of)]
    parts += [Text(f"  {line}", style="dim") for line in foot]
    parts.append(_status(view, len(shown), len(ordered)))
    return Group(*parts)


def _status(view: View, shown: int, all_of: int) -> Text:
    place = [f"{view.first + 1}-{view.first + shown} of {all_of}"] if shown < all_of else []
    said = ", ".join([*place, ORDERS[view.order], *(["paused"] if view.is_paused else [])])
    return Text(f"{said}   ? keys, q leave", style="dim", no_wrap=True)


def header(rows: Sequence[Row], job: Job, console: Screen) -> list[Text]:
    """The job in one line, and who is behind in another."""
    mark = mark_of(job.state if job.state != "ended" else "pending")
    word = "ENDED" if job.state == "ended" else mark.word.upper()
    ranks = [rank for _, rank in rows]
    where = job.hosts[0] if len(job.hosts) == 1 else count(len(job.hosts), "host")
    parts = [f"{count(len(ranks), 'rank')} on {where}" if job.hosts else count(len(ranks), "rank")]
    if job.elapsed_s is not None:
        parts.append(roughly(job.elapsed_s))
    steps = sorted({rank.step for rank in ranks})
    if steps and steps[-1]:
        parts.append(f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}")
    rates = [rank.rate_per_s for rank in ranks if rank.rate_per_s is not None]
    if rates and max(rates) > 0:
        parts.append(f"{rate(min(rates))} steps/s")
    title = Text(f" {word} ", style=f"bold reverse {mark.style}", no_wrap=True, overflow="ellipsis")
    title.append(f" {job.name}", style="bold not reverse").append(
        f"  {', '.join(parts)}", style="not bold not reverse default"
    )
    lines = [title]
    if said := job.says or behind(ranks):
        lines.append(
            Text(f"  {said}", style=mark.style if job.says else "yellow", no_wrap=True, overflow="ellipsis")
        )
    return lines


def behind(ranks: Sequence[RankNow]) -> str:
    """`rank 5 is waited for, 12.0 s by ranks 0-4, 6-7`; empty where nobody is for long."""
    late = [rank for rank in ranks if rank.waited_for_s > QUIET_S and not rank.ended]
    if not late:
        return ""
    longest = max(late, key=lambda rank: rank.waited_for_s)
    alike = [rank.rank for rank in late if rank.waiters == longest.waiters]
    who = f"rank {alike[0]} is" if len(alike) == 1 else f"ranks {spans(alike)[:60]} are"
    return f"{who} waited for, {duration(longest.waited_for_s)} by {_named(longest.waiters)}"


def in_order(rows: Sequence[Row], order: str) -> list[Row]:
    """Rows in one of ORDERS; ranks that ended last."""

    def key(row: Row) -> tuple[object, ...]:
        name, rank = row
        if order == "r":
            return name, rank.rank
        waited = -rank.waited_for_s if order == "b" else -rank.waited_for_total_s
        return (
            name,
            rank.ended,
            *((waited, rank.step) if order == "w" else (rank.step, waited)),
            -(rank.quiet_s or 0.0),
            rank.rank,
        )

    return sorted(rows, key=key)


def table_of(
    shown: Sequence[Row],
    rows: Sequence[Row],
    console: Screen,
    *,
    line_of: Callable[[int], str] = lambda rank: "",
) -> Table:
    """With as many columns as fit beside each other, each value whole."""
    furthest = max((rank.step for _, rank in rows), default=0)
    one_cell = len({name for name, _ in rows}) <= 1
    titles = TITLES[1:] if one_cell else TITLES
    cells = [{"cell": Text(name), **cells_of(rank, furthest, line_of(rank.rank))} for name, rank in shown]
    for left_out in range(len(SPARED) + 1):
        kept = [title for title in titles if title not in SPARED[:left_out]]
        table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
        for title in kept:
            is_number = title in NUMBERS
            table.add_column(
                title,
                justify="right" if is_number else "left",
                overflow="fold" if is_number else "ellipsis",
                no_wrap=True,
            )
        for row in cells:
            table.add_row(*(row[title] for title in kept))
        if Measurement.get(console, console.options, table).maximum < console.width:
            break
    return table


def cells_of(rank: RankNow, furthest: int, line: str) -> Mapping[str, Text]:
    """By title."""
    quiet = rank.quiet_s is not None and rank.quiet_s > QUIET_S and not rank.ended
    late, waits = rank.step < furthest and not rank.ended, rank.parts.get("peers", 0.0)
    return {
        "rank": Text(str(rank.rank), style="bold yellow" if late else ""),
        "step": Text(
            f"{rank.step}{f' (-{furthest - rank.step})' if late else ''}", style="yellow" if late else ""
        ),
        "steps/s": Text(NOT_KNOWN if rank.rate_per_s is None else f"{rank.rate_per_s:.2f}"),
        "quiet": Text(
            NOT_KNOWN if rank.quiet_s is None else duration(rank.quiet_s), style="red" if quiet else ""
        ),
        "waited for": Text(
            _waited_for(rank), style="red" if rank.waited_for_s > QUIET_S and not rank.ended else ""
        ),
        "compute": Text(percent(rank.parts["compute"]) if rank.parts else NOT_KNOWN),
        "waiting": Text(percent(waits) if rank.parts else NOT_KNOWN),
        "doing": Text(rank.phase, style="dim" if rank.ended else ""),
        "at": Text(rank.place or line),
        "last event": Text(rank.last, style="dim"),
    }


def _named(ranks: Sequence[int]) -> str:
    """`0,2-7`, or `487 ranks` where that would take a line."""
    listed = spans(ranks)
    return listed if len(listed) <= MOST_LISTED else count(len(ranks), "rank")


def _waited_for(rank: RankNow) -> str:
    """`12.0 s by 0,2-7`; where nobody waits now, what it has cost them so far."""
    if rank.waited_for_s:
        return f"{duration(rank.waited_for_s)} by {_named(rank.waiters)}"
    return f"({duration(rank.waited_for_total_s)})" if rank.waited_for_total_s else NOT_KNOWN
