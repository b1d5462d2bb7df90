"""Files that are put in place of others in one step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nsadiag.evidence.layout import read_own_json, replace_private

_on_event: dict[str, Callable[[], None]] = {}


def _hook(event: str, _: tuple[object, ...]) -> None:
    if _on_event and (act := _on_event.pop(event, None)):
        act()


sys.addaudithook(_hook)  # for good: it comes up between any two lines, as an exception thrown by another thread does


@pytest.mark.parametrize("event", ["tempfile.mkstemp", "open", "os.rename"])
def test_what_another_thread_throws_in_stays_what_it_is(tmp_path: Path, event: str) -> None:
    thrown = TimeoutError()

    def throw() -> None:
        raise thrown

    _on_event[event] = throw
    with pytest.raises(TimeoutError) as caught:
        replace_private(tmp_path / "counts.json", b"{}")
    assert caught.value is thrown
    assert not list(tmp_path.iterdir())


def test_a_time_limit_of_the_job_ends_a_read(tmp_path: Path) -> None:
    (tmp_path / "counts.json").write_text("{}")
    assert read_own_json(tmp_path / "counts.json") == {}

    def throw() -> None:
        raise TimeoutError("the job's limit")

    _on_event["open"] = throw
    with pytest.raises(TimeoutError, match="the job's limit"):
        read_own_json(tmp_path / "counts.json")


def test_an_error_names_the_file_that_was_meant(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match=r"taken'?$") as caught:
        replace_private(tmp_path / "taken", b"")
    assert caught.value.errno is not None
