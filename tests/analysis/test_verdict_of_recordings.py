"""Recorded evidence of the scripts of repro/, judged again in a moment, without torch, and in any order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.promises import promises
from support.recordings.golden import archive_of, missed, recorded, uncited, unpack
from support.recordings.verdicts import Recordings, Verdicts

PROMISES = {promise.name: promise for promise in promises()}
RECORDED = recorded()
WITHOUT_TORCH = """
import json, sys
from pathlib import Path
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("a judgement needs no torch")
sys.meta_path.insert(0, Refuse())
from nsadiag.analysis.verdict import judge_directory
print(json.dumps({Path(run).name: judge_directory(Path(run)).to_json() for run in sys.argv[1:]}))
assert "torch" not in sys.modules
"""


def shape(verdict: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on the order in which evidence is read."""
    told = json.loads(json.dumps(verdict))
    return {key: told[key] for key in ("class", "outcome", "guilty_ranks", "blocked_ranks", "signature")}


def test_every_script_that_needs_no_gpu_has_a_recording() -> None:
    run = {name for name, promise in PROMISES.items() if promise.needs is None}
    assert run - set(RECORDED) == set()


@pytest.mark.parametrize("name", RECORDED)
def test_the_promised_verdict_is_read_from_the_recording_in_any_order(
    name: str, verdicts: Verdicts, recordings: Recordings
) -> None:
    run = recordings.of(archive_of(name))
    verdict = verdicts.of(archive_of(name))
    assert missed(PROMISES[name], verdict) == [], verdict["summary"]
    assert uncited(run, verdict) == []
    assert shape(verdicts.backwards(archive_of(name)).verdict) == shape(verdict)


def test_recordings_are_judged_without_torch(tmp_path: Path) -> None:
    some = RECORDED[::12]
    runs = [unpack(archive_of(name), tmp_path / name).path for name in some]
    judged = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *map(str, runs)], capture_output=True, text=True, check=False
    )
    assert judged.returncode == 0, judged.stderr
    verdicts = json.loads(judged.stdout)
    assert {name: missed(PROMISES[name], verdict) for name, verdict in verdicts.items()} == {
        name: [] for name in some
    }
