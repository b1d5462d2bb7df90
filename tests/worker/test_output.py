"""Streams that lead to files of ours are the streams of a plain run, and a disk of ours never makes print() raise."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import nsadiag
from nsadiag.agent.job.log_tail import Follow
from nsadiag.evidence.layout import part_of, parts_of

BOOTSTRAP = Path(nsadiag.__file__).parent / "worker" / "bootstrap"
ASKS = """
import sys
for stream in (sys.stdout, sys.stderr):
    raw = getattr(stream.buffer, "raw", stream.buffer)
    print(repr(stream), stream.name, stream.mode, stream.newlines, stream.encoding, stream.errors, stream.write_through,
          stream.buffer.name, stream.buffer.mode, raw.name, raw.closefd, stream.fileno())
print(sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__)
sys.__stdout__.write("one\\n"); print("two"); sys.__stdout__.write("three\\n"); print("four")
sys.stdout.buffer.write(bytes(range(256)) + b"\\n")
"""


def as_rank(folder: Path, source: str, *options: str, limit: int | None = None) -> tuple[int, bytes, str]:
    """Exit code, and what came to the rank's own files, or to the launcher's where it has none."""
    (folder / "run").mkdir(exist_ok=True)
    seen = []
    for name in ("stdout", "stderr"):
        seen.append((folder / f"launcher.{name}").open("wb"))
    ids = {
        f"NSADIAG_{name}_ID": f"{os.fstat(file.fileno()).st_dev}:{os.fstat(file.fileno()).st_ino}"
        for name, file in zip(("STDOUT", "STDERR"), seen, strict=True)
    }
    watched = {"NSADIAG_RUN_DIR": str(folder / "run"), "PYTHONPATH": str(BOOTSTRAP), "RANK": "0", **ids}

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run(
        [sys.executable, *options, "-c", source],
        env={**os.environ, **watched},
        stdout=seen[0],
        stderr=seen[1],
        preexec_fn=limited,
        check=False,
    )
    for file in seen:
        file.close()
    rank = folder / "run/ranks/00000"
    out, err = (
        own if (own := rank / f"{name}.log").exists() else folder / f"launcher.{name}"
        for name in ("stdout", "stderr")
    )
    return done.returncode, out.read_bytes(), err.read_text()


@pytest.mark.parametrize("options", [(), ("-u",), ("-X", "utf8")])
def test_a_program_that_asks_its_streams_gets_the_answers_of_a_plain_run(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    plain = subprocess.run([sys.executable, *options, "-c", ASKS], capture_output=True, check=False)
    assert as_rank(tmp_path, ASKS, *options) == (0, plain.stdout, "")


@pytest.mark.parametrize("options", [(), ("-u",)])
def test_a_log_that_may_not_grow_goes_on_in_another_file(tmp_path: Path, options: tuple[str, ...]) -> None:
    source = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
for n in range(1000):
    print(n, "x" * 60)
"""
    code, _, err = as_rank(tmp_path, source, *options)
    parts = parts_of(tmp_path / "run/ranks/00000/stdout.log")
    assert (code, err, len(parts)) == (0, "", 8)
    assert all(part.stat().st_size <= 8192 for part in parts)
    assert "".join(part.read_text() for part in parts) == "".join(f"{n} {'x' * 60}\n" for n in range(1000))


@pytest.mark.slow
def test_of_a_log_whose_files_stay_tiny_the_rest_is_lost_and_nothing_else(tmp_path: Path) -> None:
    source = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
for n in range(1000):
    print("x" * 63)
"""
    code, out, err = as_rank(tmp_path, source)
    assert (code, err, len(out)) == (0, "", 64)
    assert len(parts_of(tmp_path / "run/ranks/00000/stdout.log")) == 101


def test_a_file_of_the_users_own_behind_stdout_says_that_it_may_not_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
import os, resource
os.dup2(os.open("mine", os.O_WRONLY | os.O_CREAT), 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
try:
    for n in range(10):
        print("x" * 63)
except OSError as error:
    os.write(2, f"{error.errno}".encode())
os._exit(0)
"""
    monkeypatch.chdir(tmp_path)
    plain = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert as_rank(tmp_path, source)[::2] == (0, plain.stderr) == (0, "27")


def test_parts_of_a_log_are_shown_in_order_also_where_it_is_set_aside_meanwhile(tmp_path: Path) -> None:
    log, new, shown, wanted = tmp_path / "stdout.log", tmp_path / "new", tmp_path / "shown", b""
    with shown.open("wb") as sink, Follow().following(lambda: {log: sink.fileno()}):
        for number in range(1, 200):
            text = f"{number}\n".encode() * 1000
            with log.open("ab") as file:
                file.write(text)
            wanted += text
            os.link(log, part_of(log, number))
            new.touch()
            new.replace(log)
    assert shown.read_bytes() == wanted


def test_a_log_that_is_made_shorter_in_place_is_shown_from_its_beginning_again(tmp_path: Path) -> None:
    log, shown = tmp_path / "stdout.log", tmp_path / "shown"
    with shown.open("wb") as sink:
        follow = Follow()
        with log.open("ab", buffering=0) as file, follow.following(lambda: {log: sink.fileno()}):
            file.write(b"before it was rotated\n")
            follow.catch_up()
            os.truncate(log, 0)
            follow.catch_up()
            file.write(b"after\n")
    assert shown.read_bytes() == b"before it was rotated\nafter\n"


@pytest.mark.parametrize("then", ["nothing", "a new file"])
@pytest.mark.parametrize("away", ["renamed", "removed"])
def test_a_log_that_is_rotated_away_is_shown_as_long_as_the_job_writes_to_it(
    tmp_path: Path, away: str, then: str
) -> None:
    log, shown = tmp_path / "stdout.log", tmp_path / "shown"
    with shown.open("wb") as sink:
        follow = Follow()
        with log.open("ab", buffering=0) as file, follow.following(lambda: {log: sink.fileno()}):
            file.write(b"before it was rotated\n")
            follow.catch_up()
            log.unlink() if away == "removed" else log.rename(tmp_path / "stdout.log-20261128")
            if then == "a new file":
                log.write_bytes(b"of another writer\n")
                follow.catch_up()
            file.write(b"after\n")
    told = b"of another writer\n" if then == "a new file" else b""
    assert shown.read_bytes() == b"before it was rotated\n" + told + b"after\n"


@pytest.mark.parametrize("limit", [0, 100_000, 4_000_000])
def test_a_rank_whose_files_may_not_grow_runs_without_a_recording(tmp_path: Path, limit: int) -> None:
    code, out, _ = as_rank(tmp_path, "print('trains')", limit=limit)
    assert (code, out) == (0, b"trains\n" if limit else b"")


def test_a_stream_of_the_users_own_is_left_as_it_is(tmp_path: Path) -> None:
    """Also that it is buffered: `python train.py | head -1` must not end otherwise."""
    source = "import sys; print(sys.stdout.line_buffering, type(sys.stdout.buffer.raw).__name__)"
    watched = {"NSADIAG_RUN_DIR": str(tmp_path), "PYTHONPATH": str(BOOTSTRAP), "RANK": "0"}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"} | watched
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False FileIO\n"


WRITES = """
import array, ctypes, sys
class Unmeasured(bytearray):
    def __len__(self): raise OSError("no length")
raw = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)
for data in (b"one\\n", memoryview(b"two\\n"), array.array("i", [0x0a363534]), ctypes.c_int(0x0a393837), Unmeasured(b"own\\n")):
    assert raw.write(data) == 4
"""


@pytest.mark.parametrize("options", [(), ("-u",)])
def test_whatever_has_bytes_can_be_written(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert as_rank(tmp_path, WRITES, *options) == (0, b"one\ntwo\n456\n789\nown\n", "")
