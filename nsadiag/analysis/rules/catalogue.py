"""Metadata of rules, read from their files without importing them: the analysis takes a while to import, and a list must print at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from nsadiag.analysis.rules.order import in_causal_order
from nsadiag.analysis.rules.rule import Family
from nsadiag.source.literals import docstring_of, firsts_of, keywords_of, rows_of

FOLDER = Path(__file__).resolve().parent
RULE = re.compile(r"^\w+ = (Rule\(\n.*?^\))", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"^\w+ = ((?:rules|each)_of\(\n.*?^\))", re.MULTILINE | re.DOTALL)
OF_DATA = 'each_of(\n    "data"'
CHECK = re.compile(r"^    check=(\w+),$", re.MULTILINE)
STATED = ("family", "explained_by", "explains", "means")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One rule without its check."""

    name: str
    family: Family
    purpose: str  # the meaning of its classes; of a rule that introduces none, that of its module, of a row, what it detects
    explained_by: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()
    means: Mapping[str, str] = field(default_factory=dict)


@cache
def entries() -> tuple[Entry, ...]:
    """All rules in the order in which they are tried."""
    return in_causal_order(each for path in sorted(FOLDER.rglob("*.py")) for each in _stated(path))


def classes() -> dict[str, str]:
    """Every class in causal order, and what it says happened."""
    return {cls: sentence for entry in entries() for cls, sentence in entry.means.items()}


def _stated(path: Path) -> Iterator[Entry]:
    text = path.read_text(encoding="utf-8")
    for match in RULE.finditer(text):
        given, checks = keywords_of(match[1], STATED), CHECK.findall(match[1])
        yield Entry(
            name=checks[0],
            family=given["family"],
            purpose=" ".join(given.get("means", {}).values())
            or " ".join(docstring_of(text).split("\n\n")[0].split()),
            explained_by=given.get("explained_by", ()),
            explains=given.get("explains", ()),
            means=given.get("means", {}),
        )
    for table in TABLE.finditer(text):
        yield from _rows(table[1])


def _rows(table: str) -> Iterator[Entry]:
    """Each row of a table is explained by those before it."""
    before = tuple(keywords_of(table, STATED).get("explained_by", ()))
    rows = rows_of(table, ("name", "detected"))
    named = {row["name"]: row["detected"] for row in rows if row} | dict(firsts_of(table))
    family: Family = "data" if table.startswith(OF_DATA) else "correctness"
    for name, detected in named.items():
        yield Entry(name=name, family=family, purpose=detected, explained_by=before)
        before = (*before, name)
