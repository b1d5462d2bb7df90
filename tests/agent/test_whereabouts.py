"""What a rank's line has called, in the words of whoever wrote the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsadiag.agent.whereabouts import _called, _short
from nsadiag.evidence.documents.python_stacks import StackFrame

LIB = "/usr/lib/python3/site-packages/"
# Innermost first, as py-spy lists them.
STACKS = {
    "get": [
        ("get_objects", "ray/_private/worker.py"),
        ("get", "ray/_private/worker.py"),
        ("wrapper", "ray/_private/client_mode_hook.py"),
        ("auto_init_wrapper", "ray/_private/auto_init_hook.py"),
    ],
    "all_reduce": [
        ("all_reduce", "torch/distributed/distributed_c10d.py"),
        ("_exception_logger.<locals>.wrapper", "torch/distributed/c10d_logger.py"),
    ],
}


@pytest.mark.parametrize("name", STACKS)
def test_a_decorator_is_not_what_the_line_called(name: str) -> None:
    frames = [StackFrame(name=function, filename=LIB + file, line=1) for function, file in STACKS[name]]
    assert _called(frames) == name


def test_a_script_beside_the_working_directory_has_no_dots_in_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _short(f"{tmp_path}/train.py") == "train.py"
    assert _short(f"{tmp_path}/../train.py") == str(tmp_path.parent / "train.py")
