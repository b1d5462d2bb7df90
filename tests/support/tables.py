"""Tables by hand, as those that a recording is read into."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nsadiag.analysis.case import Case
from nsadiag.analysis.relations.messages.pairing import PendingTransfer
from nsadiag.evidence.table import Table


def table(rows: Iterable[Mapping[str, Any] | Sequence[Any]], columns: Sequence[str] = ()) -> Table:
    """Of mappings, what one of them lacks missing; or of values in the order of the columns."""
    rows = list(rows)
    if rows and isinstance(rows[0], Mapping):
        names = dict.fromkeys((*columns, *(name for row in rows for name in row)))
        return Table({name: [row.get(name) for row in rows] for name in names})  # type: ignore[union-attr]
    return Table.of_rows(rows, columns)  # type: ignore[arg-type]


def case_of(cell: Any = None, **facts: Any) -> Case:
    """A case of which these tables, states and groups are known, by the names of its properties."""
    case = Case(cell)
    case.__dict__.update(facts)
    return case


def pending(rank: int, peer: int, direction: str, counterpart: str | None) -> PendingTransfer:
    word: Any = {
        "op": "isend" if direction == "to" else "irecv",
        "group": "default_pg",
        "source": "blackbox.bin",
    }
    return PendingTransfer(rank=rank, direction=direction, peer=peer, tag=0, number=1, step=0, place=None, counterpart=counterpart, **word)  # fmt: skip
