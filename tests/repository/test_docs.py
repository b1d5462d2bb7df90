"""The documentation: links lead somewhere, and the pages that a reader meets first stay short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nsadiag import __version__

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("", "changes", "docs", "docs/classes", "docs/lab", "repro", "nsa", "packaging/nsa")
PAGES = sorted(page for folder in FOLDERS for page in (ROOT / folder).glob("*.md"))
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
MOST_WORDS = {
    "docs/architecture.md": 2000,
    "docs/accuracy.md": 1000,
    "docs/glossary.md": 500,
    "docs/performance.md": 1500,
}


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    missing = []
    for path, anchor in LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            missing.append(f"{path}#{anchor}")
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_programs_that_a_page_names_are_there(page: Path) -> None:
    named = re.findall(r"(?<![\w/])(?:benchmarks|repro)/\w[\w/]*\.py", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", MOST_WORDS)
def test_the_first_pages_stay_short(page: str) -> None:
    assert len((ROOT / page).read_text().split()) <= MOST_WORDS[page]


def test_the_glossary_has_thirty_words_at_most() -> None:
    rows = [row for row in (ROOT / "docs/glossary.md").read_text().splitlines() if row.startswith("| ")]
    assert 0 < len(rows) - 1 <= 30


README = (ROOT / "README.md").read_text()


def test_the_readme_begins_with_an_answer_and_how_to_have_one() -> None:
    lines = README.splitlines()
    first = "\n".join(lines[:40])
    assert len(lines) < 150
    assert "distributed pytorch" in " ".join(README.split()[2:7]).lower()
    assert (
        first.index(" HUNG ")
        < first.index("pip install")
        < first.index("nsadiag run -- torchrun --nproc-per-node 8")
    )


def test_the_answer_in_the_readme_is_that_of_the_guide() -> None:
    guide = (ROOT / "docs/guide.md").read_text().splitlines()
    answer = README.partition("```console\n")[2].partition("```")[0].splitlines()
    assert [line for line in answer if line not in guide and "[..." not in line] == []


def test_versions_agree() -> None:
    written = [
        re.search(
            r'^version[:=] *"?([\d.]+)',
            (ROOT / name).read_text().replace("version = ", "version="),
            re.MULTILINE,
        )
        for name in ("pyproject.toml", "CITATION.cff")
    ]
    assert [match and match[1] for match in written] == [__version__, __version__]
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_news_fragments_make_a_section_of_the_changelog() -> None:
    pytest.importorskip("towncrier")
    done = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "next"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    fragments = [path for path in (ROOT / "changes").iterdir() if path.name != "README.md"]
    said = " ".join(done.stdout.split())
    assert [path.name for path in fragments if " ".join(path.read_text().split()) not in said] == []
