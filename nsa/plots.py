"""Plots of what a run's telemetry wrote: `python -m nsa.plots DIR` writes loss.svg, gates.svg and selection.svg there.

Plain SVG, a line for every layer; nothing to install.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from html import escape
from pathlib import Path

WIDTH, HEIGHT, MARGIN = 420, 220, 44  # of one panel, in pixels
LEGEND = 8  # lines that a panel has room to name
COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#edae49", "#8d6a9f", "#4a4e69", "#00798c", "#a23b72")

Lines = dict[str, list[tuple[float, float]]]  # by name: step and value


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns 0 if something was drawn, 2 if there is nothing to draw."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print(
            "error: no directory\nhint: python -m nsa.plots DIR, the telemetry.dir of a run", file=sys.stderr
        )
        return 2
    written = draw_all(Path(arguments[0]))
    for path in written:
        print(path)
    if not written:
        print(f"error: {arguments[0]} holds no telemetry\nhint: train with --telemetry.dir", file=sys.stderr)
    return 0 if written else 2


def draw_all(directory: Path) -> list[Path]:
    """Write the plots of the telemetry in `directory`, for which there is data."""
    plots = {
        "loss": losses(directory / "heartbeat_rank0.jsonl"),
        "gates": by_layer(directory / "gate_stats.csv"),
        "selection": by_layer(directory / "k_stats.csv"),
    }
    written = []
    for name, panels in plots.items():
        drawn = {title: lines for title, lines in panels.items() if any(lines.values())}
        if drawn:
            path = directory / f"{name}.svg"
            path.write_text(svg(drawn), encoding="utf-8")
            written.append(path)
    return written


def losses(heartbeat: Path) -> dict[str, Lines]:
    """Loss and validation loss by step, and tokens per second."""
    loss: Lines = defaultdict(list)
    pace: Lines = defaultdict(list)
    for said in _records(heartbeat):
        for key, lines in (("loss", loss), ("eval_loss", loss), ("tokens_per_s", pace)):
            if isinstance(said.get(key), (int, float)):
                lines[key].append((said["done"], said[key]))
    return {"loss": loss, "tokens per second": pace}


def by_layer(table: Path) -> dict[str, Lines]:
    """A panel for each column of the table, a line in it for each layer."""
    panels: dict[str, Lines] = defaultdict(lambda: defaultdict(list))
    if not table.exists():
        return panels
    with table.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            for column, value in row.items():
                if column not in ("step", "layer"):
                    panels[column][f"layer {row['layer']}"].append((float(row["step"]), float(value)))
    return panels


def svg(panels: dict[str, Lines]) -> str:
    """All panels, two in a row."""
    rows = -(-len(panels) // 2)
    parts = [
        f'<g transform="translate({(i % 2) * WIDTH},{(i // 2) * HEIGHT})">{_panel(title, lines)}</g>'
        for i, (title, lines) in enumerate(panels.items())
    ]
    size = f'width="{2 * WIDTH}" height="{rows * HEIGHT}"'
    style = 'font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{"".join(parts)}\n</svg>\n'


def _panel(title: str, lines: Lines) -> str:
    points = [point for line in lines.values() for point in line]
    left, right = _range(x for x, _ in points)
    low, high = _range(y for _, y in points)

    def place(x: float, y: float) -> str:
        across = MARGIN + (x - left) / (right - left) * (WIDTH - 2 * MARGIN)
        down = HEIGHT - MARGIN - (y - low) / (high - low) * (HEIGHT - 2 * MARGIN)
        return f"{across:.1f},{down:.1f}"

    drawn = [
        f'<polyline fill="none" stroke="{COLOURS[i % len(COLOURS)]}" points="{" ".join(place(*p) for p in line)}">'
        f"<title>{escape(name)}</title></polyline>"
        for i, (name, line) in enumerate(lines.items())
    ]
    frame = f'<rect x="{MARGIN}" y="{MARGIN}" width="{WIDTH - 2 * MARGIN}" height="{HEIGHT - 2 * MARGIN}" fill="none" stroke="#999"/>'
    labels = (
        (MARGIN, MARGIN - 8, title), (4, MARGIN + 4, f"{high:.4g}"), (4, HEIGHT - MARGIN, f"{low:.4g}"),
        (MARGIN, HEIGHT - MARGIN + 16, f"step {left:g}"), (WIDTH - MARGIN - 30, HEIGHT - MARGIN + 16, f"{right:g}"),
    )  # fmt: skip
    texts = [f'<text x="{x}" y="{y}">{escape(text)}</text>' for x, y, text in labels]
    return "".join([frame, *drawn, *texts, *_legend(lines)])


def _legend(lines: Lines) -> list[str]:
    """The names of the lines in their colours, one below the other, where they fit."""
    if not 1 < len(lines) <= LEGEND:
        return []
    at = f'x="{WIDTH - MARGIN - 6}" text-anchor="end"'
    return [
        f'<text {at} y="{MARGIN + 14 * (i + 1)}" fill="{COLOURS[i % len(COLOURS)]}">{escape(name)}</text>'
        for i, name in enumerate(lines)
    ]


def _range(values: Iterable[float]) -> tuple[float, float]:
    values = list(values)
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _records(path: Path) -> Iterable[dict]:
    """The complete lines; a run that was killed may leave half of one."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


if __name__ == "__main__":
    sys.exit(main())
