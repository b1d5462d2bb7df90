"""Tables of events by hand, as those that a black box is decoded into."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nsadiag.evidence.ring.reader import Label
from nsadiag.evidence.table import Table

from .tables import table


def events(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Rows with `label` as the worker writes it, decoded into group and call site."""
    return table(_decoded(dict(row)) for row in rows)


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    label = Label.of(row.pop("label"))
    return {"detail": label.detail, "step": 0, **row, "group": label.group, "site": label.site}
