"""The costs of a matrix on a terminal: outliers among the cells, and the growth of the first measure."""

from __future__ import annotations

from collections.abc import Iterator

from rich.padding import Padding
from rich.text import Text

from nsadiag.reports.scaling import Scaling, growth_words
from nsadiag.reports.words import clean

OFFS_SHOWN = 5


def scaling_lines(scaling: Scaling | None) -> Iterator[Text | Padding]:
    """Nothing where nothing was fitted."""
    growth = [words for measure in scaling.measures[:1] for words in growth_words(measure)] if scaling else []
    if scaling is None or not (growth or scaling.offs or scaling.cut_short):
        return
    yield Text()
    yield Text("Costs", style="bold")
    for words in growth:
        yield _indented(Text(clean(words)))
    for words in (*scaling.offs[:OFFS_SHOWN], *scaling.cut_short[:OFFS_SHOWN]):
        yield _indented(Text(clean(words), style="yellow"))
    more = sum(max(0, len(rows) - OFFS_SHOWN) for rows in (scaling.offs, scaling.cut_short))
    if more:
        yield _indented(Text(f"and {more} more, in the report", style="dim"))


def _indented(text: Text) -> Padding:
    return Padding(text, (0, 0, 0, 2), expand=False)
