"""Text beside a label or a bullet, wrapped at blanks alone: a path that is longer than the line is left whole, to be copied."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

WORD = re.compile(r"\S+\s*")


@dataclass(frozen=True)
class Hanging:
    """A paragraph whose first line begins with `label`, and whose other lines are indented to match."""

    label: Text
    body: Text
    indent: int = 2

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        label = Text(" " * self.indent) + self.label
        room = options.max_width - label.cell_len
        for number, line in enumerate(wrapped(self.body, room)):
            start = label if number == 0 else Text(" " * label.cell_len)
            yield from (start + line).render(console)
            yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, options.max_width)


def paragraph(body: Text, indent: int = 2) -> Hanging:
    """The same without a label."""
    return Hanging(Text(), body, indent)


def labelled(rows: Sequence[tuple[Text, Text]], gap: int = 2, indent: int = 2) -> Iterator[Hanging]:
    """Rows whose labels have one width."""
    width = max((label.cell_len for label, _ in rows), default=0)
    for label, body in rows:
        yield Hanging(label + Text(" " * (width - label.cell_len + gap)), body, indent)


def wrapped(text: Text, width: int) -> list[Text]:
    """Lines of at most `width` cells, but for words that are longer."""
    found: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        offsets, used = [], 0
        for match in WORD.finditer(line.plain):
            needed = cell_len(match[0].rstrip())
            if used and used + needed > width:
                offsets.append(match.start())
                used = 0
            used += cell_len(match[0])
        pieces = line.divide(offsets)
        for piece in pieces:
            piece.rstrip()
        found += pieces
    return found
