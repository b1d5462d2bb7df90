"""The rooms of nsadiag/analysis: which may import which, none too full, and no circle anywhere in the package."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from pathlib import Path

import pytest
from support.documents.imports import ROOT, arrows, module_name

ANALYSIS = "nsadiag.analysis"
MOST_FILES = 15  # in one folder: what a reader takes in at a glance
MOST_LINES = 60  # of a function, its signature included
# Packages whose documents are read into values; the parts of the analysis that read or write documents of their own.
MOST_RAW = {"nsadiag/analysis": 0, "nsadiag/source": 0, "nsadiag/agent": 72}
READ_DOCUMENTS = {"ingest", "external"}
# From the ground up. Besides its own files a room may import these rooms of analysis, also lazily and for types.
ROOMS: dict[str, frozenset[str]] = {
    "outliers": frozenset(),
    "records": frozenset(),
    "tracing": frozenset(),
    "ingest": frozenset({"records"}),
    "facts": frozenset({"records", "ingest"}),
    "case": frozenset({"records", "facts"}),
    "relations": frozenset({"outliers", "records", "ingest", "facts", "case"}),
    "explain": frozenset({"outliers", "records", "ingest", "facts", "case", "relations", "paths"}),
    "scale": frozenset({"outliers", "records", "ingest", "facts", "relations"}),
    "paths": frozenset({"records", "facts", "case"}),
    "because": frozenset({"records", "case", "explain", "paths", "rules"}),
    "rules": frozenset({"outliers", "records", "ingest", "facts", "case", "relations", "explain", "paths"}),
    "judgement": frozenset({"records", "facts", "case", "relations"}),
    "resolve": frozenset({"records", "tracing", "case", "rules"}),
    "verdict": frozenset(
        {
            "tracing",
            "because",
            "records",
            "ingest",
            "case",
            "scale",
            "explain",
            "external",
            "load",
            "resolve",
            "judgement",
            "roles",
        }
    ),
    "roles": frozenset({"records", "case", "relations", "load"}),
    "external": frozenset({"records", "ingest", "facts", "scale"}),
    "load": frozenset({"records", "ingest", "facts", "scale", "external"}),
    "matrix": frozenset({"records", "ingest", "case"}),
    "diff": frozenset({"records", "case", "load"}),
    "tables": frozenset({"records", "ingest", "facts", "case", "relations", "load"}),
    "snapshot": frozenset({"facts"}),
}


@functools.cache
def imports(root: Path) -> dict[str, set[str]]:
    """The modules of ours that each module imports: nested, lazy and type-only imports too."""
    files = sorted(path for package in ("nsa", "nsadiag") for path in (root / package).rglob("*.py"))
    modules = {module_name(path, root) for path in files}
    return {
        module_name(path, root): {a.target for a in arrows(path, root) if a.target in modules}
        - {module_name(path, root)}
        for path in files
    }


def room(module: str) -> str:
    return module.removeprefix(ANALYSIS).removeprefix(".").partition(".")[0]


def upward(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Imports between rooms of analysis that the table does not allow, without their common prefix."""
    return {
        (source.removeprefix(f"{ANALYSIS}."), target.removeprefix(f"{ANALYSIS}."))
        for source, targets in graph.items()
        for target in targets
        if source.startswith(f"{ANALYSIS}.") and target.startswith(f"{ANALYSIS}.")
        if room(target) not in {room(source), *ROOMS[room(source)]}
    }


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that cannot be put into an order in which each imports only earlier ones; empty if there are none."""
    left = dict(graph)
    while free := {m for m, ts in left.items() if not ts & set(left)}:
        left = {m: ts for m, ts in left.items() if m not in free}
    return sorted(left)


def test_rooms_of_the_analysis_import_only_what_lies_below_them() -> None:
    assert upward(imports(ROOT)) == set()


def test_every_room_of_the_analysis_has_its_row_in_the_table() -> None:
    entries = [
        p for p in (ROOT / "nsadiag/analysis").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
    ]
    assert {p.stem for p in entries} - {"__init__"} == set(ROOMS)


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circle(imports(ROOT)) == []


def folders(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The same between folders; one and another inside it count as one place."""
    found: dict[str, set[str]] = {}
    for source, targets in graph.items():
        here = found.setdefault(folder(source), set())
        here |= {there for there in map(folder, targets) if not is_inside(folder(source), there)}
    return found


def folder(module: str) -> str:
    return module if ROOT.joinpath(*module.split(".")).is_dir() else module.rpartition(".")[0]


def is_inside(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def test_no_folder_imports_itself_by_way_of_others() -> None:
    assert circle(folders(imports(ROOT))) == []


def test_no_folder_is_too_full_to_be_read_at_a_glance() -> None:
    paths = [path for room in ("nsadiag", "benchmarks") for path in (ROOT / room).rglob("*.py")]
    files = Counter(path.parent for path in paths if path.stem != "__init__")
    assert {str(folder.relative_to(ROOT)): n for folder, n in files.items() if n > MOST_FILES} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{node.name}": lines
        for path in sorted((ROOT / "nsadiag").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MOST_LINES
    }
    assert found == {}


# The second judges of logs and of Ray's jobs, which are to end in a Case.
SECOND_JUDGES = {"external", "actors"}


def test_a_class_name_means_one_thing_in_the_analysis() -> None:
    folder = ROOT / "nsadiag/analysis"
    named = Counter(
        node.name
        for path in folder.rglob("*.py")
        if path.relative_to(folder).parts[0] not in SECOND_JUDGES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, times in named.items() if times > 1} == set()


def test_documents_become_values_where_they_are_read() -> None:
    """Elsewhere a `dict[str, Any]` is a row of a data frame, a document that is written, or a table of anything."""
    found = {
        room: sum(
            path.read_text(encoding="utf-8").count("dict[str, Any]")
            for path in (ROOT / room).rglob("*.py")
            if not READ_DOCUMENTS & set(path.relative_to(ROOT / room).parts)
        )
        for room in MOST_RAW
    }
    assert {room: n for room, n in found.items() if n > MOST_RAW[room]} == {}


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("facts.exits", "relations.pending"),
        ("case", "explain.context"),
        ("relations.pending", "rules.exits.child_exceptions"),
    ],
)
def test_a_planted_upward_import_is_found(source: str, target: str) -> None:
    graph = {f"{ANALYSIS}.{source}": {f"{ANALYSIS}.{target}"}, f"{ANALYSIS}.{target}": set()}
    assert upward(graph) == {(source, target)}


def test_a_planted_circle_of_folders_is_found() -> None:
    graph = {"nsa.data.batches": {"nsa.train.loop"}, "nsa.train.loop": {"nsa.data.streams"}}
    assert circle(graph) == []
    assert circle(folders(graph)) == ["nsa.data", "nsa.train"]


def test_a_planted_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


def only_for_one_rule(graph: dict[str, set[str]]) -> set[str]:
    """Modules of analysis outside rules/ that nothing but one module of rules/ imports."""
    rules = f"{ANALYSIS}.rules."
    users: dict[str, list[str]] = {}
    for source, targets in graph.items():
        for target in targets:
            users.setdefault(target, []).append(source)
    return {
        module
        for module, by in users.items()
        if module.startswith(f"{ANALYSIS}.") and not f"{module}.".startswith(rules)
        if len(by) == 1 and by[0].startswith(rules)
    }


def test_what_one_rule_alone_needs_lies_beside_it() -> None:
    assert only_for_one_rule(imports(ROOT)) == set()


def test_a_planted_helper_of_one_rule_is_found() -> None:
    one, two, helper = (f"{ANALYSIS}.{m}" for m in ("rules.exits.one", "rules.exits.two", "facts.helper"))
    assert only_for_one_rule({one: {helper}, two: set(), helper: set()}) == {helper}
    assert not only_for_one_rule({one: {helper}, two: {helper}, helper: set()})
