"""A rank's path: what is written down, what it costs at most, and when nothing is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.processes.recorded_paths import record, walked

from nsadiag.analysis.paths.walk import Exc, Walk
from nsadiag.worker.rehearsal.paths.values import text_of

LOOP = """
class Patience:
    bad = 0
def waits(most, patience):
    return patience.bad < most
def main():
    patience = Patience()
    for step in range(3):
        patience.bad += 1
        call("all_reduce")
        if not waits(2, patience):
            break
main()
"""


def test_lines_their_values_and_the_calls_are_recorded_in_order(tmp_path: Path) -> None:
    walk = Walk(0, walked(record(tmp_path, LOOP)))
    main = [step for step in walk.steps if step.frame.code.text.endswith("main")]
    assert [step.line for step in main] == [7, 8, 9, 10, 11, 8, 9, 10, 11, 12]
    assert [(call.op, call.step.line) for call in walk.calls] == [("all_reduce", 10)] * 2
    asked = [step for step in walk.steps if step.line == 5]
    assert [(walk.value(s, ("patience", "bad")), walk.value(s, ("most",))) for s in asked] == [
        ("1", "2"),
        ("2", "2"),
    ]


def test_a_long_loop_is_folded_until_the_next_call(tmp_path: Path) -> None:
    source = "for n in range(100_000):\n    x = n\ncall('barrier')\ny = 1\n"
    directory = record(tmp_path, source)
    walk = Walk(0, walked(directory))
    assert len(walk.steps) < 10_000
    assert walk.steps[-1].line == 4 and walk.steps[-1].frame.folded


def test_an_exception_is_seen_where_it_is_swallowed(tmp_path: Path) -> None:
    source = "def load():\n    raise ValueError\ntry:\n    load()\nexcept ValueError:\n    pass\n"
    walk = Walk(0, walked(record(tmp_path, source)))
    seen = [each for step in walk.steps for each in step.inner if isinstance(each, Exc)]
    assert {(each.type, each.step.line) for each in seen} == {("ValueError", 2), ("ValueError", 4)}


ENDS = """
class Own:
    left = 2
    def __iter__(self): return self
    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left
for batch in Own():
    pass
feed = iter([1])
try:
    for batch in Own():
        next(feed)
except StopIteration:
    pass
"""


def test_the_end_of_an_iterator_is_an_exception_only_where_a_handler_catches_it(tmp_path: Path) -> None:
    walk = Walk(0, walked(record(tmp_path, ENDS)))
    seen = [each for step in walk.steps for each in step.inner if isinstance(each, Exc)]
    assert [(each.type, each.step.line) for each in seen] == [("StopIteration", 15)]
    assert seen[0].ends_an_iterator


def test_the_path_outlives_a_sigkill(tmp_path: Path) -> None:
    source = "import os\nx = 1\nos.kill(os.getpid(), 9)\n"
    assert Walk(0, walked(record(tmp_path, source))).last.line == 3


def test_a_fork_of_the_rank_is_not_its_path(tmp_path: Path) -> None:
    source = "import os\nif os.fork() == 0:\n    x = 1\n    os._exit(0)\nos.wait()\ny = 2\n"
    assert 3 not in {step.line for step in Walk(0, walked(record(tmp_path, source))).steps}


@pytest.mark.parametrize("tool", ["import sys; sys.settrace(lambda *_: None)"])
def test_a_debugger_keeps_its_place_and_the_gap_is_said(tmp_path: Path, tool: str) -> None:
    directory = record(
        tmp_path,
        "import sys\nassert sys.gettrace().__name__ == '<lambda>'\nopen('kept', 'w')\n",
        before=f"{tool}; os.chdir({str(tmp_path)!r})",
    )
    assert (tmp_path / "kept").exists()
    assert "another tool traces it" in directory.gaps.read_text()
    assert not directory.path_words.exists()


def test_a_secret_is_not_written_down(tmp_path: Path) -> None:
    source = "key = 'hf_abcdefghijklmnopqrstuvwxyz012345'\nif key:\n    pass\n"
    directory = record(tmp_path, source)
    assert "hf_abcdefghijkl" not in directory.path_names.read_text()


class Loud:
    def __repr__(self) -> str:
        raise AssertionError("asked for its words")

    __len__ = __bool__ = __repr__  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (True, "True"),
        (None, "None"),
        (0.1, "0.1"),
        ("a", "'a'"),
        ([1, 2], "list [1, 2]"),
        ({1: 2}, "dict of 1: 1"),
        (dict.fromkeys("dabec"), "dict of 5: 'd', 'a', 'b', 'e', …"),
        ({Loud()}, "set of 1"),
        (Loud(), ""),
        (torch.tensor(0.25), "tensor 0.25"),
        (torch.tensor([True]), "tensor 1"),
        (torch.ones(2), ""),
        (torch.ones(1).to_sparse(), ""),
        (torch.nn.Parameter(torch.ones(1)), ""),
        ([Loud()], "list of 1"),
    ],
)
def test_values_are_small_texts_and_no_code_of_the_users_runs_for_them(value: object, text: str) -> None:
    assert text_of(value) == text


HELD = """
import os
from nsadiag.worker.rehearsal.paths import recorder
def open_end():
    try:
        yield 1
    finally:
        pass
os.held, os.other = open_end(), recorder  # let go of when the names of our modules are gone
next(os.held)
call("barrier")
"""


def test_a_generator_that_is_closed_as_python_leaves_says_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    walk = Walk(0, walked(record(tmp_path, HELD)))
    assert [call.op for call in walk.calls] == ["barrier"]
    assert capfd.readouterr().err == ""
