"""A job that nobody recorded and that NCCL keeps busy: its GPU and its CPU spin, and only NCCL's own count tells motion."""

from __future__ import annotations

import tarfile
from pathlib import Path

from nsadiag.analysis.verdict import judge_directory
from nsadiag.evidence.layout import read_json, write_json

GOLDEN = Path(__file__).parents[2] / "golden" / "nccl_attached_trainer.tar.gz"


def unpacked(folder: Path) -> list[Path]:
    """A hung Trainer on two GPUs, attached to: NCCL's two accounts of it."""
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(folder, filter="data")
    return sorted(folder.glob("nodes/*/captures/*/ras.json"))


def test_a_job_that_spins_at_one_line_is_not_called_healthy(tmp_path: Path) -> None:
    assert len(unpacked(tmp_path)) == 2
    verdict = judge_directory(tmp_path)
    assert verdict.outcome == "unknown"
    claims = [each.claim for each in verdict.evidence]
    assert any("member 0 of 2 has launched 27 AllReduce, and member 1 26" in claim for claim in claims)


def test_one_whose_collectives_go_on_is(tmp_path: Path) -> None:
    last = unpacked(tmp_path)[-1]
    document = read_json(last)
    for member in document["communicators"][0]["ranks"]:
        member["collective_counts"]["AllReduce"] += 3
    write_json(last, document)
    verdict = judge_directory(tmp_path)
    assert (verdict.outcome, verdict.summary) == (
        "healthy",
        "Progressing at the last snapshot: NCCL launched 6 collectives between the snapshots.",
    )


def test_without_its_account_a_busy_gpu_among_several_is_no_motion(tmp_path: Path) -> None:
    for path in unpacked(tmp_path):
        path.unlink()
    verdict = judge_directory(tmp_path)
    assert verdict.outcome == "unknown"
    assert not any("NCCL launched" in each.claim for each in verdict.evidence)


def test_an_account_of_another_shape_is_a_gap(tmp_path: Path) -> None:
    write_json(unpacked(tmp_path)[-1], {"communicators": [{"ranks": 3, "size": "two"}]})
    assert judge_directory(tmp_path).outcome == "unknown"
