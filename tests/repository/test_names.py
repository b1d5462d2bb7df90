"""Docstrings open with a noun phrase or an imperative, not with a question word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.documents.imports import ROOT

PACKAGES = ("nsa", "nsadiag")
QUESTION = re.compile(r"(Who|Whom|Whose|What|Which|Whether|Where|When|Why|How|Of)\b")
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def questions(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring that opens with a question word; a predicate may open with `Whether`."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | FUNCTION):
            continue
        text = ast.get_docstring(node) or ""
        predicate = isinstance(node, FUNCTION) and node.returns and ast.unparse(node.returns) == "bool"
        if QUESTION.match(text) and not (predicate and text.startswith("Whether ")):
            yield node.body[0].lineno, text.partition("\n")[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_docstring_opens_with_a_question_word(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted(Path(ROOT, package).rglob("*.py"))
        for line, text in questions(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        '"""What lies here."""',
        'class A:\n    """Who wrote it."""',
        'def f() -> int:\n    """Whether it is."""',
        'def f() -> bool:\n    """Where it is."""',
        'async def f() -> str:\n    """Of a job."""',
    ],
)
def test_a_planted_question_is_found(source: str) -> None:
    assert len(list(questions(source))) == 1


@pytest.mark.parametrize(
    "source", ['def f() -> bool:\n    """Whether it is."""', '"""Whatever is left."""', "x = 1"]
)
def test_predicates_and_other_words_pass(source: str) -> None:
    assert list(questions(source)) == []
