"""`nsadiag list`: the parts that are built in, and the scripts that fail on purpose."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from pathlib import Path

from nsadiag.commands.faults import faults, headline
from nsadiag.source.literals import docstring_of, docstring_of_function, imported_by, table_of

GAP = re.compile(r" {2,}")
PACKAGE = Path(__file__).resolve().parents[1]


def parts() -> dict[str, dict[str, str]]:
    """Everything built in, by kind: the purpose of each name. Read, not imported: probes need torch, reports take long."""
    from nsadiag.analysis.rules import catalogue
    from nsadiag.engines.registry import engines

    captures = _registered("agent/captures/capturing.py", "CAPTURES", "NODE_CAPTURES")
    probes = _registered("worker/probes/__init__.py", "PROBES")
    in_file = Counter(file for file, _ in probes.values())
    return {
        "probes": {
            name: _purpose(file) if in_file[file] == 1 else _purpose_of(function, file)
            for name, (file, function) in probes.items()
        },
        "captures": {name: _purpose_of(function, file) for name, (file, function) in captures.items()},
        "detectors": {entry.name: entry.purpose for entry in catalogue.entries()},
        "engines": engines(),
        "reporters": {
            name: _purpose(file)
            for name, (file, _) in _registered("reports/formats/registry.py", "REPORTERS").items()
        },
        "classes": catalogue.classes(),
    }


def part_table(width: int | None = None) -> list[str]:
    """Lines to read: each kind, and below it its parts. Without a width each part is one line."""
    lines = []
    for kind, entries in parts().items():
        lines.append(kind)
        for name, text in entries.items():
            lines += _entry(f"  {name:32}", text, width)
    return lines


def _entry(name: str, text: str, width: int | None) -> list[str]:
    """The name, and the text beside it, or below it where half of the line is taken by the name."""
    if width is None:
        return [f"{name}{text}".rstrip()]
    beside = len(name) * 2 <= width
    indent = " " * (len(name) if beside else 6)
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    if beside and lines:
        return [name + lines[0][len(name) :], *lines[1:]]
    return [f"  {GAP.sub('  ', name.strip())}", *lines]


def fault_table(width: int | None = None) -> list[str]:
    """Lines to read: each class, and below it its scripts, with how many ranks they take and what happens in them."""
    lines: list[str] = []
    for fault in faults():
        if fault.classes[0] not in lines:
            lines.append(fault.classes[0])
        ranks = 1 if fault.launch == "python" else int(fault.launch.split()[-1])
        needs = f", needs {fault.needs}" if fault.needs else ""
        lines += _entry(f"  {fault.name:44}{ranks} rank{'s' * (ranks > 1)}{needs}  ", fault.what, width)
    return lines


def _registered(registry: str, *tables: str) -> dict[str, tuple[Path, str]]:
    """File and function of each entry of a registry: a dict literal, by the imports of its module."""
    text = (PACKAGE / registry).read_text(encoding="utf-8")
    imports = imported_by(text)
    return {
        key: (PACKAGE.parent.joinpath(*imports[function].split(".")).with_suffix(".py"), function)
        for key, function in table_of(text, *tables).items()
    }


def _purpose(file: Path) -> str:
    """The purpose of a module."""
    return headline(docstring_of(file.read_text(encoding="utf-8")))


def _purpose_of(function: str, file: Path) -> str:
    """The purpose of a function."""
    return headline(docstring_of_function(file.read_text(encoding="utf-8"), function))
