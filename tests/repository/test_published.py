"""What is published as evidence can be judged anew by whoever reads it, and says the same."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from nsadiag.analysis.verdict import judge_directory
from nsadiag.evidence.records import Verdict

PUBLISHED = Path(__file__).resolve().parents[2] / "artifacts" / "field-reports-2gpu"
CELLS = {
    "slow": "layers=5,attention=sequential",
    "crashed": "checkpointing=reentrant,binding=late,parallel=ddp",
}


def judged(name: str, folder: Path, watch: dict[str, Any]) -> Verdict:
    with tarfile.open(PUBLISHED / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    told = json.loads((folder / "watch.json").read_text())
    (folder / "watch.json").write_text(json.dumps(told | watch))
    return judge_directory(folder)


@pytest.mark.parametrize("name", CELLS)
def test_a_published_cell_has_the_verdict_that_its_report_says(name: str, tmp_path: Path) -> None:
    cells = json.loads((PUBLISHED / "matrix.json").read_text())["cells"]
    (told,) = (cell["verdict"] for cell in cells if cell["id"] == CELLS[name])
    verdict = judged(name, tmp_path, {})
    assert (verdict.cls, list(verdict.guilty_ranks)) == (told["class"], told["guilty_ranks"])


def test_a_step_of_a_minute_is_slow_though_its_watch_was_told_to_expect_it(tmp_path: Path) -> None:
    verdict = judged("slow", tmp_path, {"looks": []})
    assert verdict.cls == "slow_compute" and "autograd nodes" in verdict.summary
    assert verdict.evidence[0].claim.startswith("a step takes 6")


def test_a_look_at_a_jobs_imports_says_nothing_of_its_steps(tmp_path: Path) -> None:
    look = {"t_s": 0.1, "first": 1, "second": 2, "judgement": "busy", "reason": "rank 0 used 0.9 CPUs"}
    verdict = judged("slow", tmp_path, {"looks": [look]})
    assert verdict.evidence[0].claim.startswith("a step takes 6")
