"""sys.path of a watched process: what it would be without us, however a script adds to PYTHONPATH."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsadiag.agent.job.launch import job_environment
from nsadiag.evidence.layout import RunDir

SHOW = f"{sys.executable} -c 'import json, sys; print(json.dumps(sys.path))'"
FORMS = [
    "",
    "PYTHONPATH=$PYTHONPATH:more ",
    "PYTHONPATH=more:$PYTHONPATH ",
    "PYTHONPATH=more:$PYTHONPATH:other ",
]


def path_seen(line: str, folder: Path, environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        line, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("users", [None, "/nowhere", "/nowhere:"])
@pytest.mark.parametrize("form", FORMS)
def test_the_path_is_the_one_without_us(
    form: str, users: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if users is not None:
        monkeypatch.setenv("PYTHONPATH", users)
    (tmp_path / "job").mkdir()
    added = job_environment(RunDir(path=tmp_path / "run"), "run", tmp_path, "light")
    plain, watched = (
        path_seen(form + SHOW, tmp_path / "job", {**os.environ, **more}) for more in ({}, added)
    )
    assert watched == plain
