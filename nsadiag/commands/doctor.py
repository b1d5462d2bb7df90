"""`nsadiag doctor`: says what of the evidence could be had here, what stops the rest, and the remedy."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from nsadiag.agent.checkup import Check, check_process, checkup
from nsadiag.agent.checkup.accelerators import try_gpus
from nsadiag.agent.checkup.patient import find_python
from nsadiag.errors import EXIT_ENVIRONMENT, EXIT_HEALTHY, UsageError
from nsadiag.evidence.layout import SCHEMA_VERSION
from nsadiag.evidence.phrases import count
from nsadiag.reports.terminal.screen import Screen
from nsadiag.reports.terminal.text import Text

# Letter and colour of each answer; the word itself is in --json.
MARKS = {
    "works": ("✓", "green"),
    "limited": ("!", "yellow"),
    "missing": ("x", "red"),
    "not here": ("·", "dim"),
}


WIDE = 110


def run_checks(
    *, python: str | None, out: Path, pid: int | None, gpus_s: float | None = None
) -> tuple[list[Check], str]:
    """The answers, and the Python that was tried. Raises UsageError if there is no such process.

    `gpus_s`: for so many seconds the GPUs are loaded, and nothing else is checked.
    """
    if pid is not None and gpus_s is not None:
        raise UsageError("--pid and --gpus together", "give one of them")
    if pid is not None:
        if not Path(f"/proc/{pid}").exists():
            raise UsageError(f"there is no process {pid}", "give the pid of a rank: pgrep -f train.py")
        return check_process(pid), f"process {pid}"
    chosen = find_python(python)
    if gpus_s is not None:
        return try_gpus(chosen, gpus_s), chosen
    return checkup(chosen, _existing(out)), chosen


def _existing(path: Path) -> Path:
    """The directory, or the nearest one above it that is there."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def exit_code(checks: Sequence[Check]) -> int:
    """docs/contract.md: 3 where something is missing that a verdict cannot do without."""
    return EXIT_ENVIRONMENT if any(check.stands_in_the_way for check in checks) else EXIT_HEALTHY


def as_json(checks: Sequence[Check], tried: str) -> str:
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "ready": exit_code(checks) == EXIT_HEALTHY,
        "tried_on": tried,
        "checks": [dataclasses.asdict(check) for check in checks],
    }
    return json.dumps(document, indent=1)


def show(checks: Sequence[Check], tried: str, console: Screen, *, of_gpus: bool = False) -> None:
    """Each check, its status and its hint, which gets its own column where the terminal is wide enough."""
    remedies = [check for check in checks if check.status in ("limited", "missing") and check.remedy]
    beside = console.width >= WIDE and bool(remedies)
    with console.capture() as capture:
        title, python = _title(checks, of_gpus=of_gpus), Text(tried, style="dim")
        beside_title = title.cell_len + len(" · ") + python.cell_len <= console.width
        console.print(
            title.append(" · ", style="dim").append(python) if beside_title else title, soft_wrap=True
        )
        if not beside_title:
            console.print(Text("  ").append(python), soft_wrap=True)
        console.print()
        console.print(_table(checks, with_remedies=beside))
        if remedies and not beside:
            console.print()
            console.print(Text("  To change", style="bold"))
            console.print(_remedies(remedies))
    console.write(capture.get())


def _title(checks: Sequence[Check], *, of_gpus: bool) -> Text:
    essential = [check for check in checks if check.stands_in_the_way]
    weaker = [check for check in checks if check.status in ("limited", "missing")]
    word, style = (
        ("NOT READY", "red") if essential else ("LIMITED", "yellow") if weaker else ("READY", "green")
    )
    title = Text(f" {word} ", style=f"bold reverse {style}")
    works = sum(check.status == "works" for check in checks)
    said = (
        f" {works} of {count(len(checks), 'check')} of the GPUs found nothing"
        if of_gpus
        else f" {works} of {count(len(checks), 'source')} of evidence are available here"
    )
    return Text.assemble(title, (said, f"bold {style}"))


def _table(checks: Sequence[Check], *, with_remedies: bool) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    if with_remedies:
        table.add_column(overflow="fold", ratio=1)
        table.add_row("", "", Text("seen", style="dim"), Text("to change", style="dim"))
    for check in checks:
        letter, style = MARKS[check.status]
        plain = "dim" if check.status == "not here" else ""
        cells = [Text(check.name, style=plain), Text(check.detail, style=plain)]
        remedy = check.remedy if check.status in ("limited", "missing") else ""
        more = [Text(remedy, style="cyan")] if with_remedies else []
        table.add_row(Text(f"  {letter}", style=style), *cells, *more)
    return table


def _remedies(checks: Sequence[Check]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        needed = " (needed)" if check.stands_in_the_way else ""
        table.add_row(Text(f"  {check.name}{needed}", style="dim"), Text(check.remedy, style="cyan"))
    return table
