"""Numbers that others wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.recordings.golden import archive_of, unpack

from nsadiag.analysis.verdict import judge_directory
from nsadiag.evidence.numbers import natural


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("12", 12), ("9" * 18, 10**18 - 1), ("9" * 19, None), ("9" * 5000, None), ("", None), ("-1", None), ("²", None), ("٣", None)],
)  # fmt: skip
def test_a_text_is_a_number_only_if_64_bits_hold_it(text: str, number: int | None) -> None:
    assert natural(text) == number


@pytest.mark.parametrize("digits", [19, 20, 5000])
@pytest.mark.parametrize(
    "name",
    ["p2p_mismatch_micro_batches", "collective_args_mismatch_expert_splits", "p2p_mismatch_tag_drift"],
)
def test_events_with_longer_numbers_are_judged(name: str, digits: int, tmp_path: Path) -> None:
    run = unpack(archive_of(name), tmp_path / "run")
    for names in run.path.rglob("names.jsonl"):
        rows = [json.loads(line) for line in names.read_text().splitlines()]
        for row in rows:
            row["name"] = re.sub(r"\d+", "9" * digits, row["name"])
        names.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert judge_directory(run.path).outcome
