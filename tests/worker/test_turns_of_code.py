"""Turns of user code by sys.monitoring, against what Python's own trace function sees."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsadiag.analysis.paths.turned import walked_of
from nsadiag.evidence.documents.types import read_rows
from nsadiag.evidence.rehearsal.paths import LOW, MOST_NUMBER, NUMBER, WHAT, Named, Walked, Word
from nsadiag.evidence.ring.turns import UNWOUND, Turn, Turns, read_turns, split

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="sys.monitoring came with Python 3.12: the machine with GPUs has it"
)

LOOPS = """
def main(n):
    out = []
    for i in range(n):
        if i % 2 and n:
            out.append(i)
        else:
            continue
    while n:
        n -= 1
    else:
        y = 2
    return out
"""
EXCEPTIONS = """
def g(k):
    if k:
        raise KeyError(k)
    return 1
def main(n):
    for k in range(n):
        try:
            g(k)
        except KeyError as e:
            z = str(e)
        finally:
            w = 1
    with open("/dev/null") as h:
        q = h.read()
    return q
"""
GENERATORS = """
def gen(n):
    for i in range(n):
        if i == 1:
            yield -1
        yield i
def main(n):
    s = 0
    for v in gen(n):
        s += v
    return s
"""
RECURSION = """
def main(n):
    if n == 0:
        return 0
    a = main(n - 1)
    return a + n
"""
COROUTINES = """
import asyncio
async def w(k):
    if k:
        await asyncio.sleep(0)
    return k
async def m(n):
    r = await asyncio.gather(*map(w, range(n)))
    async with asyncio.Lock():
        t = 1
    for x in r:
        await w(x)
    return r
def main(n):
    return asyncio.run(m(n))
"""
MATCHES = """
class A:
    def __init__(self, n):
        self.n = n
        self.items = list(range(n))
    def go(self):
        match self.n:
            case 1:
                return 1
            case 2:
                r = (1
                     if self.items
                     else 3)
                return r
        assert self.n, "x"
        return None
def main(n):
    for k in range(1, n):
        A(k).go()
"""


class Recorded:
    """A program beside its recorder."""

    def __init__(self, folder: Path, source: str) -> None:
        self.folder, self.file = folder, folder / "job.py"
        self.file.write_text(source)
        self.names: dict[str, Any] = {}
        exec(compile(source, str(self.file), "exec"), self.names)
        directory = SimpleNamespace(path_words=folder / "paths.bin", path_names=folder / "paths.jsonl")
        from nsadiag.worker.turns.recorder import TurnRecorder

        self.recorder = TurnRecorder(SimpleNamespace(directory=directory))  # type: ignore[arg-type]

    def run(self, *given: Any, name: str = "main") -> Any:
        self.recorder.begin()
        try:
            return self.names[name](*given)
        finally:
            self.recorder.end()

    @property
    def turns(self) -> Turns:
        rows = read_rows(Named, self.folder / "paths.jsonl")
        found = read_turns((self.folder / "paths.bin").read_bytes(), rows)
        assert found is not None
        return found

    @property
    def walked(self) -> Walked:
        return walked_of({0: self.turns})[0]

    def lines(self) -> list[int]:
        """Those of the program itself."""
        found, stack = [], [""]
        walked = self.walked
        for word in walked.words:
            what = word >> WHAT
            if what == Word.ENTER:
                stack.append(walked.names[word >> NUMBER & MOST_NUMBER].file)
            elif what == Word.LEAVE:
                stack.pop()
            elif what == Word.LINE and stack[-1] == str(self.file):
                found.append(word & LOW)
        return found

    def values(self, name: str) -> list[str]:
        """All that a name was, in their order."""
        walked, found, last = self.walked, [], ""
        for word in walked.words:
            text = walked.names[word >> NUMBER & MOST_NUMBER].text if word >> NUMBER & MOST_NUMBER else ""
            if word >> WHAT == Word.NAME:
                last = text
            elif word >> WHAT == Word.VALUE and last == name:
                found.append(text)
        return found


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Callable[[str], Recorded]]:
    made: list[Recorded] = []

    def make(source: str) -> Recorded:
        made.append(Recorded(tmp_path, source))
        return made[-1]

    yield make
    for each in made:
        each.recorder.end()


def traced(program: Recorded, *given: Any) -> list[int]:
    """The lines that Python's own trace function sees."""
    found = []

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != str(program.file):
            return None
        if event == "line":
            found.append(frame.f_lineno)
        return trace

    sys.settrace(trace)
    try:
        program.names["main"](*given)
    finally:
        sys.settrace(None)
    return found


@pytest.mark.parametrize(
    "source", [LOOPS, EXCEPTIONS, GENERATORS, RECURSION, COROUTINES, MATCHES],
    ids=["loops", "exceptions", "generators", "recursion", "coroutines", "matches"],
)  # fmt: skip
def test_lines_that_follow_from_turns_are_those_that_a_tracer_sees(
    recorded: Callable[[str], Recorded], source: str
) -> None:
    program = recorded(source)
    program.run(4)
    assert program.lines() == traced(program, 4)


def test_frames_that_an_exception_left_are_told_from_those_that_returned(
    recorded: Callable[[str], Recorded],
) -> None:
    program = recorded(EXCEPTIONS)
    program.run(3)
    turns = program.turns
    left = [
        (turns.names[n].text, low >= UNWOUND) for what, n, low in map(split, turns.words) if what == Turn.LEFT
    ]
    assert [by_exception for name, by_exception in left if name == "g"] == [False, True, True]
    assert ("main", False) in left


def test_values_are_those_of_the_round(recorded: Callable[[str], Recorded]) -> None:
    program = recorded(LOOPS)
    program.run(3)
    assert program.values("i") == ["0", "1", "2"]
    assert program.values("n") == ["3", "2", "1", "0"]


def test_no_code_of_the_users_runs_for_a_value_and_nothing_is_kept_alive(
    recorded: Callable[[str], Recorded],
) -> None:
    program = recorded("""
import weakref
asked = []
class Sly:
    def __getattribute__(self, name):
        asked.append(name)
        return object.__getattribute__(self, name)
    def __repr__(self):
        asked.append("repr")
        return ""
    def __len__(self):
        asked.append("len")
        return 1
    def __eq__(self, other):
        asked.append("eq")
        return False
    @property
    def most(self):
        asked.append("most")
class Held:
    pass
def main():
    sly, held = Sly(), Held()
    gone = weakref.ref(held)
    for k in range(3):
        if sly is None or held is None:
            return
        other = held
    del held, other
    return gone() is None
""")
    assert program.run() is True
    assert program.names["asked"] == []


def test_a_loop_that_turns_too_often_is_given_up_and_the_rest_goes_on(
    recorded: Callable[[str], Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nsadiag.worker.turns import recorder

    monkeypatch.setattr(recorder, "PER_S", 1)  # however busy the machine is
    program = recorded("""
def hot(n):
    found = 0
    for k in range(n):
        if k & 1:
            found += 1
    return found
def main(n):
    for k in range(3):
        if k:
            hot(n)
""")
    program.run(50_000)
    words = [split(word) for word in program.turns.words]
    assert sum(what == Turn.DROPPED for what, *_ in words) == 2
    assert len(words) < 10_000
    assert program.values("k")[-1] == "2"


def test_beyond_the_allowance_what_says_least_of_where_ranks_meet_is_given_up_first(
    recorded: Callable[[str], Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nsadiag.worker.turns import recorder

    clock = [0]
    monkeypatch.setattr(recorder, "monotonic_ns", lambda: clock[0])  # a step takes 10 ms, on any machine

    def call(text: str, number: int) -> None:
        clock[0] += 20_000_000
        program.recorder.call(text, number)

    program = recorded("""
class Layer:
    def forward(self, x):
        return x
def model(layers, x):
    for layer in layers:
        x = layer.forward(x)
    return x
def main(n, call):
    layers = [Layer() for _ in range(12)]
    for k in range(n):
        model(layers, ())
        if k % 2:
            call(f"all_reduce\\tdefault_pg\\t0\\t,,,\\t", k)
""")
    program.run(2000, call)
    turns = program.turns
    words = [split(word) for word in turns.words]
    given_up = [turns.names[number].text for what, number, _ in words if what == Turn.DROPPED]
    assert given_up == ["Layer.forward", "model"]
    assert [low for what, _, low in words if what == Turn.CALL] == [*range(1, 2000, 2)]
    assert program.values("k")[-1] == "1999"
    assert len(words) < 20_000 + 3 * 2048 + 12 * 2000


def test_after_many_rounds_what_is_left_begins_with_the_frames_that_are_open(
    recorded: Callable[[str], Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nsadiag.worker.turns import allowance, box, recorder

    for module in (allowance, recorder):
        monkeypatch.setattr(module, "PER_S", 1 << 40)
    for module in (box, recorder):
        monkeypatch.setattr(module, "BANK", 4000)
    program = recorded("""
def inner(k, call):
    if k % 2:
        return 1
    call(f"all_reduce\\tdefault_pg\\t0\\t,,,\\t", k)
    return 0
def main(n, call):
    for k in range(n):
        inner(k, call)
""")
    program.run(3000, program.recorder.call)
    assert not program.turns.begins
    walked = program.walked
    assert 1000 < len(walked.words) < 30_000
    code = [walked.names[w >> NUMBER & MOST_NUMBER].text for w in walked.words if w >> WHAT == Word.ENTER]
    assert {"main", "inner"} <= {*code}
    assert program.values("k")[-1] == "2999"


def test_other_threads_and_libraries_leave_no_word(recorded: Callable[[str], Recorded]) -> None:
    program = recorded("""
import json
def other(n):
    for k in range(n):
        if k:
            n
def main(thread):
    worker = thread(target=other, args=(10,))
    worker.start()
    worker.join()
    json.dumps({"a": [1, 2]}, indent=1)
""")
    program.run(threading.Thread)
    assert {row.file for row in program.turns.names.values() if row.file} <= {str(program.file), __file__}
    assert program.lines() == [8, 9, 10, 11]


def test_at_its_end_everything_is_given_back_and_a_taken_place_is_left_alone(tmp_path: Path) -> None:
    from nsadiag.worker.turns.recorder import TOOLS, TurnRecorder

    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    program = Recorded(tmp_path, LOOPS)
    program.run(2)
    code = program.names["main"].__code__
    assert [monitoring.get_tool(tool) for tool in TOOLS] == [None, None]
    for tool in TOOLS:
        monitoring.use_tool_id(tool, "another")
        assert monitoring.get_local_events(tool, code) == 0
    try:
        with pytest.raises(RuntimeError, match="another, another"):
            TurnRecorder(SimpleNamespace(directory=None))  # type: ignore[arg-type]
    finally:
        for tool in TOOLS:
            monitoring.free_tool_id(tool)
