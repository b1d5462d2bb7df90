"""What another user made where everybody may write, by a name that can be predicted, is neither written to nor believed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.jobs import Jobs

from nsadiag.agent.attaching.recorder_pipe import dump_by_pipe
from nsadiag.agent.captures.failure import CaptureError
from nsadiag.agent.captures.worker_server import WorkerServer
from nsadiag.evidence.layout import RunDir, make_private_dir
from nsadiag.evidence.ownership import NOBODY, check_not_planted, check_private
from nsadiag.evidence.ring.blackbox import BlackBox

STRANGER, ANOTHER = 54321, 54322
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes files of other users, which needs root")


@pytest.fixture
def everybodys(tmp_path: Path) -> Path:
    """A directory as /tmp is."""
    place = tmp_path / "everybodys"
    place.mkdir()
    place.chmod(0o1777)
    return place


def planted(path: Path, mode: int = 0o777) -> Path:
    path.mkdir()
    path.chmod(mode)
    os.chown(path, STRANGER, STRANGER)
    return path


def test_a_run_is_not_written_into_a_directory_that_a_stranger_made(jobs: Jobs, everybodys: Path) -> None:
    out = planted(everybodys / "run")
    done = jobs.run("run", "--out", out, "--", "true")
    assert done.returncode == 3
    assert f"error: cannot write to {out}: another user made it" in done.stderr
    assert list(out.iterdir()) == []


def test_artifacts_that_a_stranger_made_are_neither_written_nor_read(jobs: Jobs, everybodys: Path) -> None:
    folder = planted(everybodys / "artifacts")
    (folder / "latest").symlink_to(jobs.directory)
    in_there = ("env", "-C", str(everybodys))
    done = jobs.run("run", "--", "true", behind=in_there)
    assert done.returncode == 3 and "another user made it" in done.stderr
    assert [p.name for p in folder.iterdir()] == ["latest"]
    for command in ("report", "ls"):
        done = jobs.run(command, behind=in_there)
        assert done.returncode == 2 and "error: artifacts: another user made it" in done.stderr


def test_a_link_that_a_stranger_made_is_not_followed_to_our_own_directory(everybodys: Path) -> None:
    (everybodys.parent / "mine").mkdir()
    link = everybodys / "run"
    link.symlink_to(everybodys.parent / "mine")
    make_private_dir(link)
    os.lchown(link, STRANGER, STRANGER)
    with pytest.raises(PermissionError, match="another user"):
        make_private_dir(link)


def test_a_link_that_a_stranger_made_is_not_followed_on_the_way(everybodys: Path) -> None:
    (everybodys.parent / "mine").mkdir()
    link = everybodys / "runs"
    link.symlink_to(everybodys.parent / "mine")
    make_private_dir(link / "before")
    os.lchown(link, STRANGER, STRANGER)
    with pytest.raises(PermissionError, match=f"another user made it.*{link}"):
        make_private_dir(link / "run" / "ranks")
    assert not (everybodys.parent / "mine" / "run").exists()


def test_nobody_is_root_only_where_what_root_makes_belongs_to_it(everybodys: Path) -> None:
    run = planted(everybodys / "run", 0o700)
    os.chown(run, NOBODY, NOBODY)
    for check in (check_not_planted, check_private):
        with pytest.raises(PermissionError):
            check(run)
    assert list(everybodys.iterdir()) == [run] and list(run.iterdir()) == []


def test_a_directory_of_somebody_elses_is_used_where_only_they_could_have_made_it(tmp_path: Path) -> None:
    check_not_planted(planted(tmp_path / "theirs"))
    assert make_private_dir(tmp_path / "theirs" / "run").is_dir()


@pytest.mark.parametrize("make", [
    lambda path: planted(path, 0o700),
    lambda path: path.mkdir(mode=0o755),
    lambda path: path.symlink_to(make_private_dir(path.with_name("own"))),
    lambda path: path.write_text(""),
])  # fmt: skip
def test_rings_and_sockets_go_only_into_a_directory_of_ours_alone(
    everybodys: Path, make: Callable[[Path], object]
) -> None:
    place = everybodys / "nsadiag-abc"
    make(place)
    with pytest.raises(PermissionError, match="alone"):
        check_private(place)
    ring = make_private_dir(everybodys.parent / "rank") / "blackbox.bin"
    with pytest.raises(PermissionError, match="alone"):
        BlackBox(ring, rank=0, world_size=1, memory=place)
    assert not ring.is_symlink()


@pytest.fixture
def rank(everybodys: Path) -> Iterator[int]:
    """A process with NCCL's pipe and dump in a directory of everybody's."""
    names = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{everybodys}/pipe",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{everybodys}/dump",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        env=os.environ | names,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()  # its environment is its own from here on
    yield process.pid
    process.kill()
    process.communicate()


def test_a_pipe_that_is_a_link_to_a_file_of_ours_is_not_written_to(everybodys: Path, rank: int) -> None:
    mine = everybodys.parent / "mine"
    mine.write_text("mine")
    (everybodys / "pipe0.pipe").symlink_to(mine)
    with pytest.raises(CaptureError):
        dump_by_pipe(rank, 0, RunDir(path=everybodys.parent).rank(0).capture(1))
    assert mine.read_text() == "mine"


def test_a_pipe_or_file_of_a_strangers_is_not_written_to(everybodys: Path, rank: int) -> None:
    pipe = everybodys / "pipe0.pipe"
    os.mkfifo(pipe)
    os.chown(pipe, STRANGER, STRANGER)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(CaptureError, match="not what the job made"):
        dump_by_pipe(rank, 0, RunDir(path=everybodys.parent).rank(0).capture(1))
    assert os.read(reader, 10) == b""
    os.close(reader)


def as_user(number: int, act: Callable[[], object]) -> int:
    """The pid of a process of that user's that does it; its exit code is 0 if nothing is raised."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(number)
            os.setuid(number)
            act()
            os._exit(0)
        finally:
            os._exit(1)
    return pid


def test_a_strangers_answer_on_a_ranks_socket_is_not_believed(everybodys: Path) -> None:
    for folder in everybodys.parents:
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(0o711)
    path = everybodys / "0.sock"
    listening, listens = os.pipe()

    def answer() -> None:
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        path.chmod(0o777)
        server.listen()
        os.write(listens, b"!")
        signal.pause()

    def ask() -> None:
        with pytest.raises(CaptureError, match="another user answers there"):
            WorkerServer(path).handlers()

    server = as_user(STRANGER, answer)
    try:
        assert os.read(listening, 1) == b"!"
        _, status = os.waitpid(as_user(ANOTHER, ask), 0)
        assert os.waitstatus_to_exitcode(status) == 0
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
