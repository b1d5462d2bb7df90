"""What is said of a command that is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nsadiag.agent.job.launch import check_command
from nsadiag.errors import UsageError


def test_a_launcher_beside_our_python_is_shown_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nsadiag is called by its path, its environment is not on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as error:
        check_command(["torchrun", "train.py"])
    assert str(Path(sys.executable).with_name("torchrun")) in str(error.value.hint)


def test_a_launcher_that_is_nowhere_is_not_offered_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as error:
        check_command(["deepspeed", "train.py"])
    assert "did you mean deepspeed" not in str(error.value.hint)
    with pytest.raises(UsageError) as error:
        check_command(["torchrnu", "train.py"])
    assert "did you mean torchrun" in str(error.value.hint)
