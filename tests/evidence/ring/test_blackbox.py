"""The black box keeps its promises: it outlives its writer, and no garbage makes its reader raise."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsadiag.evidence.ring.blackbox import (
    HEADER_BYTES,
    RECORD,
    RECORD_BYTES,
    BlackBox,
    Counter,
    Kind,
    Phase,
)
from nsadiag.evidence.ring.names import CHUNK, Names
from nsadiag.evidence.ring.reader import Pulse, read_blackbox
from nsadiag.evidence.table import Table

garbled = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def open_box(directory: Path, *, capacity: int = 64, rank: int = 3) -> BlackBox:
    return BlackBox(directory / "box", rank=rank, world_size=8, capacity=capacity)


def run_python(source: str, *arguments: str) -> subprocess.Popen:
    """A process of its own, whose first lines on stdout are its signals."""
    return subprocess.Popen([sys.executable, "-c", source, *arguments], stdout=subprocess.PIPE, text=True)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    box = open_box(tmp_path)
    box.step = 7
    box.emit(Kind.COLLECTIVE, Phase.BEGIN, box.names("all_reduce"), 1, -2, 2**62)
    read = read_blackbox(tmp_path / "box")
    assert read.header is not None
    assert (read.header.rank, read.header.world_size, read.header.pid) == (3, 8, os.getpid())
    (event,) = read.events
    assert (event["kind"], event["phase"], event["step"]) == (Kind.COLLECTIVE, Phase.BEGIN, 7)
    assert (event["a"], event["b"], event["c"]) == (1, -2, 2**62)
    assert event["thread"] == threading.get_native_id()
    assert read.names[int(event["name"])] == "all_reduce"
    assert read.gaps == ()


def test_an_empty_ring_holds_no_events(tmp_path: Path) -> None:
    open_box(tmp_path)
    assert len(read_blackbox(tmp_path / "box").events) == 0
    assert Pulse(tmp_path / "box").last() is None


def test_a_wrapped_ring_keeps_the_newest(tmp_path: Path) -> None:
    box = open_box(tmp_path, capacity=16)
    for number in range(41):
        box.emit(Kind.STEP, Phase.POINT, 0, number)
    events = read_blackbox(tmp_path / "box").events
    assert list(events["a"]) == list(range(25, 41))
    last = Pulse(tmp_path / "box").last()
    assert last is not None and last["a"][0] == 40


def test_every_event_reported_before_sigkill_is_there(tmp_path: Path) -> None:
    source = """
import sys
from pathlib import Path
from nsadiag.evidence.ring.blackbox import BlackBox, Kind, Phase
here = Path(sys.argv[1])
box = BlackBox(here / "box", rank=0, world_size=1)
names = box.names
number = 0
while True:
    number += 1
    box.emit(Kind.STEP, Phase.POINT, names(f"name {number}"), number)
    print(number, flush=True)
"""
    writer = run_python(source, str(tmp_path))
    assert writer.stdout is not None
    for _ in range(500):
        reported = int(writer.stdout.readline())
    writer.kill()
    reported = max([reported, *(int(line) for line in writer.stdout if line.endswith("\n"))])
    assert writer.wait() == -signal.SIGKILL
    read = read_blackbox(tmp_path / "box")
    assert {int(a) for a in read.events["a"]} >= set(range(1, reported + 1))
    assert {read.names[int(e["name"])] for e in read.events} >= {f"name {n}" for n in range(1, reported + 1)}


def test_a_box_that_is_opened_anew_leaves_readers_of_the_old_one_alive(tmp_path: Path) -> None:
    open_box(tmp_path).emit(Kind.STEP, Phase.POINT, 0, 1)
    pulse = Pulse(tmp_path / "box")
    open_box(tmp_path).emit(Kind.STEP, Phase.POINT, 0, 2)
    last = pulse.last()
    assert last is not None and last["a"][0] == 1
    assert list(read_blackbox(tmp_path / "box").events["a"]) == [2]


def test_a_torn_record_is_skipped(tmp_path: Path) -> None:
    box = open_box(tmp_path)
    for number in range(5):
        box.emit(Kind.STEP, Phase.POINT, 0, number)
    raw = bytearray((tmp_path / "box").read_bytes())
    # As if the writer had died between the first and the last byte of record 3.
    raw[HEADER_BYTES + 2 * RECORD_BYTES + 56 : HEADER_BYTES + 3 * RECORD_BYTES] = bytes(8)
    (tmp_path / "box").write_bytes(raw)
    assert list(read_blackbox(tmp_path / "box").events["a"]) == [0, 1, 3, 4]


def test_a_whole_record_in_another_ones_slot_is_skipped(tmp_path: Path) -> None:
    box = open_box(tmp_path)
    box.emit(Kind.STEP, Phase.POINT, 0, 1)
    with (tmp_path / "box").open("r+b") as file:
        file.seek(HEADER_BYTES + RECORD_BYTES)
        file.write(RECORD.pack(9, 0, 0, 0, 1, 1, 0, 0, 5, 5, 5, 9))
    assert list(read_blackbox(tmp_path / "box").events["a"]) == [1]


def test_two_threads_never_share_a_slot(tmp_path: Path) -> None:
    box = open_box(tmp_path, capacity=8192)
    each, writers = 1000, 8
    start = threading.Barrier(writers)

    def write(writer: int) -> None:
        start.wait()
        for number in range(each):
            box.emit(Kind.STEP, Phase.POINT, 0, writer * each + number)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = read_blackbox(tmp_path / "box").events
    assert sorted(events["a"]) == list(range(writers * each))
    assert list(events["sequence"]) == list(range(1, writers * each + 1))
    assert events["thread"].nunique() == writers


def test_a_silenced_box_writes_nothing(tmp_path: Path) -> None:
    box = open_box(tmp_path)
    box.emit(Kind.STEP, Phase.POINT, 0, 1)
    box.silence()
    box.emit(Kind.STEP, Phase.POINT, 0, 2)
    assert list(read_blackbox(tmp_path / "box").events["a"]) == [1]


def test_a_forked_child_writes_nothing_of_its_parents(tmp_path: Path) -> None:
    source = """
import os, sys
from pathlib import Path
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.worker import session
from nsadiag.worker.failures import crash
session.open_rank(0, 1)
rank = session.current()
crash_hook = sys.excepthook
child = os.fork()
if not child:
    # What probes do: ask for the rank, and use it; and what a probe that kept it does.
    for known in filter(None, (session.current(), rank)):
        known.emit(Kind.STEP, Phase.POINT, known.names("from the child"), 666)
        known.gap("from the child")
    try:
        raise ValueError("from the child")
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    os._exit(0)
os.waitpid(child, 0)
rank.emit(Kind.STEP, Phase.POINT, rank.names("from the parent"), 1)
"""
    environment = {**os.environ, "NSADIAG_RUN_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", source], env=environment, check=True, capture_output=True)
    rank = tmp_path / "ranks" / "00000"
    read = read_blackbox(rank / "blackbox.bin")
    assert [int(e["a"]) for e in read.events if e["kind"] == Kind.STEP] == [1]
    assert list(read.names.values()) == ["from the parent"]
    assert not (rank / "exception.json").exists()
    assert not (rank / "gaps.jsonl").exists()


def test_a_name_is_written_once_and_one_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    box = open_box(tmp_path)
    long = "/".join(map(str, range(60)))
    assert [box.names(text) for text in ("a", "b\n", "ünï\ud800", "a", "", long)] == [1, 2, 3, 1, 4, 5]
    written = {1: "a", 2: "b\n", 3: "ünï\ud800", 4: "", 5: long}
    assert box.names.by_number() == read_blackbox(tmp_path / "box").names == written
    raw = (tmp_path / "box").read_bytes()
    # As if the writer had died in the third piece of the last one.
    (tmp_path / "box").write_bytes(raw[: HEADER_BYTES + 64 * RECORD_BYTES + 7 * CHUNK.size - 1])
    assert read_blackbox(tmp_path / "box").names == {n: written[n] for n in (1, 2, 3, 4)}


def test_names_that_find_no_room_are_counted_and_the_others_stay(tmp_path: Path) -> None:
    names = Names(bytearray(5 * CHUNK.size), CHUNK.size, 4)
    assert [names(text) for text in ("a", "b", "c" * 200, "d", "a", "e")] == [1, 2, 0, 0, 1, 0]
    assert names.by_number() == {1: "a", 2: "b"}
    assert names.lost == 3
    box = open_box(tmp_path)
    box.count(Counter.NAMES_LOST, 3)
    assert read_blackbox(tmp_path / "box").gaps == ("3 names of events did not fit into the recorder",)


def test_a_recording_whose_names_are_in_a_file_of_their_own_is_read(tmp_path: Path) -> None:
    open_box(tmp_path).emit(Kind.STEP, Phase.POINT, 2)
    raw = (tmp_path / "box").read_bytes()
    (tmp_path / "box").write_bytes(b"NSADBOX1" + raw[8 : HEADER_BYTES + 64 * RECORD_BYTES])
    # A line that nests deeply, and a last one that its writer did not finish.
    lines = ("[" * 100_000, '{"id": 1, "name": "a"}', '{"id": 2, "name": "b"}', '{"id": 3, "na')
    (tmp_path / "names.jsonl").write_text("\n".join(lines))
    read = read_blackbox(tmp_path / "box")
    assert (read.names, len(read.events), read.gaps) == ({1: "a", 2: "b"}, 1, ())


def test_details_that_differ_in_every_step_leave_room_for_places(tmp_path: Path) -> None:
    box = BlackBox(tmp_path / "box", rank=0, world_size=1, capacity=64, chunks=64)
    numbers = [box.names(f"default_pg\ttrain.py:{n % 3}:main\tfloat32[{n}]") for n in range(500)]
    read = read_blackbox(tmp_path / "box").names
    assert {read[n].split("\t")[1] for n in numbers[-3:]} == {f"train.py:{n}:main" for n in range(3)}
    assert (read[numbers[0]], box.names.lost) == ("default_pg\ttrain.py:0:main\tfloat32[0]", 0)


@pytest.mark.parametrize("way", ["handler", "finalizer", "threads"])
def test_whoever_adds_names_while_one_is_added_gets_numbers_that_are_read_back_right(
    tmp_path: Path, way: str
) -> None:
    source = """
import gc, itertools, json, os, signal, sys, threading, weakref
from pathlib import Path
from nsadiag.evidence.ring.blackbox import BlackBox
way, box = sys.argv[2], BlackBox(Path(sys.argv[1]) / "box", rank=0, world_size=1)
names, numbers, count = box.names, {}, itertools.count()

def add(who):
    # Each name is asked for by all who may be in the middle of adding it.
    for n in range(4):
        text = f"name {next(count) // 3} " + "x" * 90
        numbers.setdefault(names(text), text)

class Cycle:
    pass

def main():
    for n in range(3000):
        add("main")
        if way == "finalizer":
            own = Cycle()
            own.own = own
            weakref.finalize(own, add, "finalizer")

handled = itertools.count()
def handler(*_):
    next(handled)
    add("handler")
if way == "handler":
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
gc.set_threshold(7)
others = [threading.Thread(target=main) for _ in range(3 if way == "threads" else 0)]
for each in others:
    each.start()
while True:
    main()
    if way != "handler" or next(handled) > 50:
        break
signal.setitimer(signal.ITIMER_REAL, 0)
for each in others:
    each.join()
print(json.dumps(numbers))
"""
    done = subprocess.run(
        [sys.executable, "-c", source, str(tmp_path), way], capture_output=True, text=True, check=True
    )
    used = {int(number): text for number, text in json.loads(done.stdout).items()}
    read = read_blackbox(tmp_path / "box").names
    assert len(used) >= 1000
    assert {n: t for n, t in used.items() if n and read.get(n) != t} == {}


def test_a_missing_box_is_a_gap(tmp_path: Path) -> None:
    assert read_blackbox(tmp_path / "none").gaps == ("no recorder: No such file or directory",)
    assert "not a recorder file" in read_blackbox(Path(__file__)).gaps[0]


def test_a_box_that_ends_before_its_header_says_so_tells_what_is_missing(tmp_path: Path) -> None:
    made = BlackBox(tmp_path / "box", rank=0, world_size=1, capacity=128, chunks=64)
    for _ in range(100):
        made.emit(Kind.STEP, Phase.POINT)
    whole = (tmp_path / "box").read_bytes()
    assert (read_blackbox(tmp_path / "box").gaps, read_blackbox(tmp_path / "box").is_damaged) == ((), False)
    (tmp_path / "box").write_bytes(whole[: HEADER_BYTES + 96 * RECORD_BYTES])
    cut = read_blackbox(tmp_path / "box")
    assert cut.is_damaged and len(cut.events) == 96
    (gap,) = cut.gaps
    assert "cut short: 10,240 of 16,384 bytes, room for 32 of 128 events" in gap
    (tmp_path / "box").write_bytes(whole[:-1])
    (gap,) = read_blackbox(tmp_path / "box").gaps
    assert gap == "box is cut short: 16,383 of 16,384 bytes, names of events missing"


@garbled
@given(garbage=st.binary(max_size=3 * HEADER_BYTES), with_header=st.booleans())
def test_random_bytes_never_make_the_reader_raise(tmp_path: Path, garbage: bytes, with_header: bool) -> None:
    box = tmp_path / "garbage"
    header = whole_box(tmp_path)[:HEADER_BYTES] if with_header else b""
    box.write_bytes(header + garbage)
    (tmp_path / "names.jsonl").write_bytes(garbage)
    read_everything(box)


@garbled
@given(cut=st.integers(min_value=0, max_value=HEADER_BYTES + 64 * RECORD_BYTES))
def test_a_truncated_box_gives_what_it_has(tmp_path: Path, cut: int) -> None:
    box = tmp_path / "cut"
    box.write_bytes(whole_box(tmp_path)[:cut])
    events = read_everything(box)
    assert len(events) == max(cut - HEADER_BYTES, 0) // RECORD_BYTES


@garbled
@given(flips=st.lists(st.integers(min_value=0, max_value=8 * (HEADER_BYTES + 64 * RECORD_BYTES) - 1)))
def test_flipped_bits_never_make_the_reader_raise(tmp_path: Path, flips: list[int]) -> None:
    raw = bytearray(whole_box(tmp_path))
    for bit in flips:
        raw[bit // 8] ^= 1 << bit % 8
    (tmp_path / "flipped").write_bytes(raw)
    read_everything(tmp_path / "flipped")


def whole_box(directory: Path) -> bytes:
    """A full ring of 64 events."""
    path = directory / "box"
    if not path.exists():
        box = open_box(directory)
        for number in range(64):
            box.emit(Kind.STEP, Phase.POINT, box.names(str(number)), number)
    return path.read_bytes()


def read_everything(box: Path) -> Table:
    """By both readers: the whole at once, and the pulse, which may refuse what is no box."""
    read = read_blackbox(box)
    if read.header is not None:
        Pulse(box).last()
    return read.events


def test_a_full_disk_is_an_oserror_at_opening_and_not_a_sigbus_later(tiny_disk: Path) -> None:
    source = """
import sys
from pathlib import Path
from nsadiag.evidence.ring.blackbox import BlackBox, Kind, Phase
here = Path(sys.argv[1])
(here / "filling").write_bytes(bytes(4_000_000))
try:
    box = BlackBox(here / "box", rank=0, world_size=1)
except OSError as error:
    print("refused", error.errno, flush=True)
(here / "filling").unlink()
box = BlackBox(here / "box", rank=0, world_size=1, capacity=4096, chunks=256)
try:
    (here / "filling").write_bytes(bytes(5_000_000))
except OSError:
    print("full", flush=True)
for number in range(10_000):
    box.emit(Kind.STEP, Phase.POINT, 0, number)
print("alive", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", source, str(tiny_disk)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["refused", "28", "full", "alive"]), done.stderr
    assert len(read_blackbox(tiny_disk / "box").events) == 4096


def test_a_ring_held_in_memory_is_read_through_its_link(tmp_path: Path) -> None:
    memory = tmp_path / "shm"
    memory.mkdir(mode=0o700)
    box = BlackBox(tmp_path / "blackbox.bin", rank=3, world_size=4, memory=memory)
    box.emit(Kind.STEP, Phase.POINT, box.names("one"), 7)
    assert (tmp_path / "blackbox.bin").is_symlink()
    recording = read_blackbox(tmp_path / "blackbox.bin")
    assert recording.header is not None and recording.header.rank == 3
    assert [int(e["a"]) for e in recording.events] == [7]


def test_without_the_memory_there_is_an_oserror_and_no_link(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        BlackBox(
            tmp_path / "blackbox.bin",
            rank=0,
            world_size=1,
            memory=tmp_path / "gone",
        )
    assert not list(tmp_path.iterdir())


def test_counters_outlive_the_events_that_the_ring_lost(tmp_path: Path) -> None:
    box = BlackBox(tmp_path / "blackbox.bin", rank=0, world_size=1, capacity=4)
    for step in range(1, 100):
        box.count(Counter.STEPS, step)
        box.emit(Kind.STEP, Phase.POINT, 0, step)
    header = read_blackbox(tmp_path / "blackbox.bin").header
    assert header is not None and header.counters[Counter.STEPS] == 99
