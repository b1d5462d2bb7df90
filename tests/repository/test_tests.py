"""Tests lie where what they test lies: tests/analysis/facts/test_pace.py is about nsadiag/analysis/facts/pace.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.documents.imports import ROOT

TESTS = ROOT / "tests"
MOST_FILES = 25  # in one folder
# Folders that mirror no package: the checkout as a whole, several hosts, programs run plain and watched, and nsa.
OF_NO_PACKAGE = {"repository", "hosts", "harmless", "nsa"}
FILES = [
    path.relative_to(TESTS)
    for path in sorted(TESTS.rglob("test_*.py"))
    if path.relative_to(TESTS).parts[0] not in OF_NO_PACKAGE
]


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_test_file_names_a_module_of_the_package_that_its_folder_mirrors(file: Path) -> None:
    package = ROOT / "nsadiag" / file.parent
    assert package.is_dir(), f"nsadiag has no package {file.parent}"
    below = [path for path in package.rglob("*") if path.suffix == ".py" or path.is_dir()]
    names = {path.stem for path in below} - {"__init__", "__pycache__"}
    about = file.stem.removeprefix("test_")
    # test_guard.py and test_guard_terminal.py are both about guard.py.
    assert any(about == name or about.startswith(f"{name}_") for name in {*names, package.name}), (
        f"{file} bears the name of no module in {package.relative_to(ROOT)}"
    )


def test_no_folder_of_tests_is_too_full_to_be_read_at_a_glance() -> None:
    folders = {path.parent for path in TESTS.rglob("test_*.py")}
    too_full = {
        str(folder.relative_to(ROOT)): count
        for folder in folders
        if (count := len(list(folder.glob("test_*.py")))) > MOST_FILES
    }
    assert not too_full


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert len({*names}) == len(names), sorted(name for name in {*names} if names.count(name) > 1)
