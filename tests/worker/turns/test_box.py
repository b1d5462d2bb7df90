"""The files of a rank's turns, as the job's own process has them open."""

from __future__ import annotations

import gc
import json
import warnings
from pathlib import Path

from nsadiag.worker.turns.box import Box


def test_what_is_open_at_the_end_says_nothing_in_the_users_log(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        box = Box(tmp_path / "words.bin", tmp_path / "rows.jsonl")
        assert [box.text("a \ud800"), box.text("b"), box.text("a \ud800")] == [1, 2, 1]
        box.words.release()
        del box
        gc.collect()
    assert [each.message for each in said if issubclass(each.category, ResourceWarning)] == []
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(row["number"], row["text"]) for row in rows] == [(1, "a \ud800"), (2, "b")]
