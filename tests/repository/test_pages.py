"""Pages that repeat what rules, scripts and recordings say are what the generator writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.documents import pages
from support.documents.keys import meanings_in

from nsadiag.analysis.rules.registry import CLASSES
from nsadiag.commands.faults import read_fault

REMEDY = "stale: run `make docs`"


@pytest.fixture(scope="module")
def generated() -> dict[Path, str]:
    return pages.pages()


@pytest.mark.parametrize(
    "page",
    [pages.INDEX, pages.SCRIPTS, pages.README, pages.FACTS, pages.MESSAGES, pages.CONTRACT],
    ids=lambda page: page.name,
)
def test_the_generated_part_of_a_page_is_current(page: Path, generated: dict[Path, str]) -> None:
    assert page.read_text() == generated[page], REMEDY


@pytest.mark.parametrize("cls", CLASSES)
def test_the_page_of_a_class_is_current(cls: str, generated: dict[Path, str]) -> None:
    page = pages.FOLDER / f"{cls}.md"
    assert page.exists() and page.read_text() == generated[page], REMEDY


def test_no_page_is_left_of_a_class_that_is_gone(generated: dict[Path, str]) -> None:
    assert set(pages.FOLDER.glob("*.md")) <= set(generated), REMEDY


def test_a_page_shows_a_script_and_its_verdict(generated: dict[Path, str]) -> None:
    without = [
        cls for cls in CLASSES if "The verdict on its recording" not in generated[pages.FOLDER / f"{cls}.md"]
    ]
    # It takes a machine without memory left, or a job of Ray's: its scripts are in repro/ray/.
    assert {*without} == {"host_oom", "actor_died", "actor_unschedulable", "actor_call_cycle"}


def test_a_page_without_its_marks_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Classes\n")
    with pytest.raises(ValueError, match="no generated part"):
        pages.replaced(page, "text")


def test_a_script_that_does_not_say_what_one_sees_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "silent.py"
    script.write_text(
        '"""A job.\n\nPromise:\n  launch: python\n  outcome: healthy\n  class: healthy\n  guilty_ranks: []\n"""\n'
    )
    with pytest.raises(ValueError, match="On plain torchrun"):
        pages.sight(read_fault(script))


@dataclass(frozen=True, kw_only=True)
class Documented:
    """One row."""

    plain: int
    behind: str = "# no comment"  # what it holds
    # more than
    # one line
    above: int = 0
    renamed: str = field(default="", metadata={"key": "class"})  # a word of Python's


def test_a_list_of_keys_has_the_comments_of_the_fields() -> None:
    assert meanings_in(Documented) == {
        "plain": "", "behind": "what it holds", "above": "more than one line", "class": "a word of Python's",
    }  # fmt: skip
