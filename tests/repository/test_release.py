"""`make release`: wheel and sdist that are the same bytes each time, with the license as it stands here."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from nsadiag import __version__

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="hatchling is not installed")
def test_two_builds_are_the_same_and_carry_the_license(tmp_path: Path) -> None:
    line = [sys.executable, ROOT / "packaging/release.py", "--no-install", "--out", tmp_path / "out"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    names = [
        text.split("  ")[1].rpartition("/")[2]
        for text in done.stdout.splitlines()
        if len(text.split("  ")) == 2
    ]
    assert [name.rpartition(".")[2] for name in names] == ["whl", "gz"]
    notes = (tmp_path / "out/NOTES.md").read_text()
    assert notes.startswith(f"# nsadiag {__version__}\n") and all(name in notes for name in names)
    assert "### Added" in notes or "### Fixed" in notes
