"""The cleaners of formats for programs: JSON, JUnit's XML, tables for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from nsadiag.printing import Shown, clean

# XML knows no control characters, no surrogates and no non-characters, not even escaped.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# A spreadsheet computes what begins so, and what does so behind blanks.
_FORMULA = re.compile(r"\s*[=+\-@]")


class Json(Shown):
    """A document of JSON, in ASCII."""

    __slots__ = ()


class Xml(Shown):
    """A document of XML."""

    __slots__ = ()


class Csv(Shown):
    """A table with a header."""

    __slots__ = ()


def json_text(document: Any, *, indent: int | None = 1) -> Json:
    """The document, ending in a newline: texts as they are, with everything but printable ASCII escaped.

    NaN and infinity are null: Python's json would write words that other readers refuse.
    """
    text = json.dumps(_finite(document), indent=indent, default=str, allow_nan=False)
    # json leaves DEL as it is; a runner of GitHub's obeys `##[` wherever it stands.
    return Json(text.replace("\x7f", "\\u007f").replace("##[", "#\\u0023[") + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def element(
    tag: str, attributes: Mapping[str, str], parent: ElementTree.Element | None = None, text: str = ""
) -> ElementTree.Element:
    """An element with its text and attributes, of which nothing is left that XML has no place for."""
    shown = {name: _xml(value) for name, value in attributes.items()}
    made = ElementTree.Element(tag, shown) if parent is None else ElementTree.SubElement(parent, tag, shown)
    made.text = _xml(text) or None
    return made


def xml_text(root: ElementTree.Element) -> Xml:
    """The document, indented, ending in a newline."""
    ElementTree.indent(root, " ")
    return Xml(f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n')


def _xml(text: str) -> str:
    return _NO_XML.sub("", clean(text))


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> Csv:
    """The rows, under these columns and those that any of them has; what a spreadsheet would compute is text, behind an apostrophe."""
    table = io.StringIO(newline="")
    writer = csv.writer(table)
    columns = list(dict.fromkeys((*columns, *(key for row in rows for key in row))))
    table_rows: list[list[Any]] = [[row.get(name) for name in columns] for row in rows]
    for values in (columns, *table_rows):
        writer.writerow([_field(value) if isinstance(value, str) else value for value in values])
    return Csv(table.getvalue())


def _field(text: str) -> str:
    shown = clean(text)
    return f"'{shown}" if _FORMULA.match(shown) and not _is_number(shown) else shown


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
