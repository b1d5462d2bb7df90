"""The costs of a matrix on a terminal: outliers among the cells, and the growth of the first measure."""

from __future__ import annotations

from collections.abc import Iterator

from nsadiag.reports.scaling import Scaling, growth_words
from nsadiag.reports.terminal.hanging import Hanging, paragraph
from nsadiag.reports.terminal.text import Text

OFFS_SHOWN = 5


def scaling_lines(scaling: Scaling | None) -> Iterator[Text | Hanging]:
    """Nothing where nothing was fitted."""
    growth = [words for measure in scaling.measures[:1] for words in growth_words(measure)] if scaling else []
    if scaling is None or not (growth or scaling.offs or scaling.cut_short):
        return
    yield Text()
    yield Text("Scaling", style="bold")
    for words in growth:
        yield paragraph(Text(words))
    for words in (*scaling.offs[:OFFS_SHOWN], *scaling.cut_short[:OFFS_SHOWN]):
        yield paragraph(Text(words, style="yellow"))
    more = sum(max(0, len(rows) - OFFS_SHOWN) for rows in (scaling.offs, scaling.cut_short))
    if more:
        yield paragraph(Text(f"and {more} more, in the report", style="dim"))
