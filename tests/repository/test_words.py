"""The field's words in all that a person reads: verdicts, errors, help, templates. docs/glossary.md has the few of our own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What must not be said, and what is said instead.
INSTEAD = {
    r"black box(es)?": "recorder",
    r"told": "reported",
    r"foretells?|foretold": "predict",
    r"mends?|mended": "fix",
    r"for ever": "indefinitely",
    r"(goes|go|went) round": "spins",
    r"far off": "outlier",
    r"hands? on": "share",
    r"time-outs?": "timeout",
    r"rooms": "modules",
    r"parted": "diverged",
    r"looked at|(one|a|the|last|first|every|no) look|both looks": "snapshot",
    r"all 1 ranks": "rank 0",
}
# In what is read before anything else is known of nsadiag: commands, help, reports, the pages of the guide.
STILTED = {
    r"anew": "again",
    r"for want of": "without",
    r"(hear|hears) of": "be notified of",
    r"(from cheap to|as) dear|dearer": "expensive",
    r"has its answer": "is answered",
    r"so many (ranks|nodes|cells|factors|lines|steps|seconds)": "N ranks",
    r"look after look": "in every snapshot",
    r"goes on (to|with|from)": "continues",
}
FIRST_ROOMS = ("cli", "commands", "reports", "experiments", "integrations")
FIRST_PAGES = (
    "README.md", "docs/guide.md", "docs/my-job-hangs.md", "docs/bisect.md", "docs/matrix.md", "docs/shrink.md",
    "docs/parity.md", "docs/scale.md", "docs/contract.md",
)  # fmt: skip
STILTED_WORDS = re.compile(rf"\b(?:{'|'.join(STILTED)})\b")
OLD = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b")
# The number of a call has a sign before it: all_reduce #10.
UNNUMBERED = re.compile(
    r"\b(all_reduce|all_gather|barrier|broadcast|collective|call|\{[\w.\[\]]*ops?[\w.\[\]]*\}) \{[\w.]*seq\}"
)
# A language of its own: the source of a program that runs elsewhere.
NO_PROSE = {"nsadiag/agent/checkup/patient.py"}


def literals(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string that has words in it and is no docstring; an f-string with its fields by name."""
    tree = ast.parse(source)
    bodies = (
        n.body
        for n in ast.walk(tree)
        if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    )
    docstrings = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    inside = {id(part) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for part in n.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                p.value if isinstance(p, ast.Constant) else f"{{{ast.unparse(p.value)}}}" for p in node.values
            )  # type: ignore[attr-defined]
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings | inside
        ):
            text = node.value
        else:
            continue
        if " " in text:
            yield node.lineno, text


def old_word(text: str) -> re.Match[str] | None:
    """The first word that is not to be said; fields of an f-string are code."""
    return UNNUMBERED.search(text) or OLD.search(re.sub(r"\{[^}]*\}", "{}", text))


@pytest.mark.parametrize(
    "room", sorted(p.name for p in (ROOT / "nsadiag").iterdir() if (p / "__init__.py").exists())
)
def test_messages_use_the_words_of_the_field(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r} in {text!r}"
        for path in sorted((ROOT / "nsadiag" / room).rglob("*.py"))
        if path.relative_to(ROOT).as_posix() not in NO_PROSE
        for line, text in literals(path.read_text())
        if (match := old_word(text))
    ]
    assert found == [], INSTEAD


@pytest.mark.parametrize("template", sorted((ROOT / "nsadiag").rglob("*.jinja")), ids=lambda path: path.name)
def test_templates_use_the_words_of_the_field(template: Path) -> None:
    words = re.sub(r"\{[{%#].*?[}%#]\}", "", template.read_text(), flags=re.DOTALL)
    assert [match[0] for match in OLD.finditer(words)] == [], INSTEAD


# Decisions are records, in the words of their day.
PAGES = [
    *(
        page
        for page in sorted((ROOT / "docs").glob("**/*.md"))
        if "lab" not in page.parts and page.stem != "decisions"
    ),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "repro/README.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_use_the_words_of_the_field(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    # Causes can be told apart, and somebody in a script's story may be told something.
    assert [match[0] for match in OLD.finditer(prose) if match[0] != "told"] == [], INSTEAD


@pytest.mark.parametrize("room", FIRST_ROOMS)
def test_what_one_meets_first_is_in_plain_english(room: str) -> None:
    files = sorted((ROOT / "nsadiag" / room).rglob("*.py"))
    said = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]!r}"
        for path in files
        for line, text in literals(path.read_text())
        if (match := STILTED_WORDS.search(text))
    ]
    assert said == [], STILTED


@pytest.mark.parametrize("page", FIRST_PAGES)
def test_the_first_pages_are_in_plain_english(page: str) -> None:
    prose = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    assert [match[0] for match in STILTED_WORDS.finditer(prose)] == [], STILTED


@pytest.mark.parametrize(
    "source",
    [
        "f'rank {n} parted from the others'",
        "say('no black box of rank 1')",
        "'a far off cell'",
        "f'it waits in all_reduce {op.seq}'",
        "'the same line in both looks'",
    ],
)
def test_an_old_word_is_found(source: str) -> None:
    assert any(old_word(text) for _, text in literals(f"text = {source}"))


@pytest.mark.parametrize(
    "source", ["x = 'look at the line shown'", "x = 'told'", "def f():\n    '''What was told by a look.'''"]
)
def test_other_uses_pass(source: str) -> None:
    assert not any(old_word(text) for _, text in literals(source))
