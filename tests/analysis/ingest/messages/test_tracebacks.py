"""Tracebacks of a log: of several processes, with all lines of their messages, whole or cut."""

from __future__ import annotations

import pytest

from nsadiag.analysis.ingest.logs import LogFacts, numbered, read_log
from nsadiag.analysis.ingest.messages.tracebacks import CUT, Traceback

FRAMES = """Traceback (most recent call last):
  File "/job/train.py", line 71, in <module>
    train()
  File "/job/train.py", line 52, in train
    loss = model(batch)
"""
NCCL = """DistBackendError: NCCL error in: /pytorch/NCCLUtils.cpp:94, unhandled system error, NCCL version 2.27.5
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:
Error while creating shared memory segment /dev/shm/nccl-WU88OE (size 9637888), error: No space left on device (28)
"""


def read(text: str) -> LogFacts:
    return read_log(numbered(text))


def only(text: str) -> Traceback:
    (found,) = read(text).raised
    return found


def prefixed(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def place(found: Traceback) -> tuple[str, int]:
    frame = found.exception.frames[-1]
    return frame.file, frame.line


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "(WorkerDict pid=17, ip=10.0.0.1) ", "c000001: "])
def test_an_error_has_the_lines_below_it_that_name_its_cause(prefix: str) -> None:
    found = only(prefixed(prefix, FRAMES + NCCL) + "step 4 loss 2.0\n")
    assert found.exception.message.splitlines()[-1].endswith("No space left on device (28)")
    assert len(found.exception.message.splitlines()) == 4


def test_what_another_process_writes_is_no_part_of_the_message() -> None:
    text = prefixed("[rank3]: ", FRAMES + "ValueError: boom") + "[rank4]:     indented\n[rank3]: step 4\n"
    assert only(text).exception.message == "boom"


def test_the_stack_of_cpp_below_an_error_is_no_part_of_its_message() -> None:
    text = (
        FRAMES
        + "RuntimeError: CUDA error: unspecified launch failure\nException raised from f at x.cpp:1 (most recent call first):\nframe #0: c10d::ProcessGroupNCCL::watchdogHandler() + 0x1\n"
    )
    assert only(text).exception.message == "CUDA error: unspecified launch failure"


def test_tracebacks_of_processes_that_share_a_log_are_told_apart_by_pid() -> None:
    one, other = (
        prefixed(f"(WorkerDict pid={n}) ", FRAMES.replace("52", str(n)) + f"ValueError: of {n}")
        for n in (17, 18)
    )
    mixed = "".join(f"{a}\n{b}\n" for a, b in zip(one.splitlines(), other.splitlines(), strict=True))
    found = read(f"(WorkerDict pid=18) [rank5]: hello\n{mixed}").raised
    assert [(each.rank, each.exception.message, place(each)[1]) for each in found] == [
        (None, "of 17", 17),
        (5, "of 18", 18),
    ]


@pytest.mark.parametrize("end", ["", "step 4\n" * 600, FRAMES + "ValueError: boom\n"])
def test_a_traceback_without_its_last_line_has_its_place_and_no_type(end: str) -> None:
    found = read(FRAMES + end).raised[0]
    assert (found.exception.message, place(found)) == (CUT, ("/job/train.py", 52))


def test_a_log_that_begins_within_a_traceback_still_has_its_error() -> None:
    found = only("".join(FRAMES.splitlines(keepends=True)[3:]) + "ValueError: boom\n")
    assert (found.exception.type, found.exception.message, place(found)) == (
        "ValueError",
        "boom",
        ("/job/train.py", 52),
    )


def test_a_box_of_richs_is_a_traceback() -> None:
    text = """╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /job/train.py:52 in train                                                    │
│                                                                              │
│   51 │   batch = next(batches)                                               │
│ ❱ 52 │   loss = model(batch)                                                 │
╰──────────────────────────────────────────────────────────────────────────────╯
ValueError: boom
"""
    found = only(text)
    assert (found.exception.type, place(found)) == ("ValueError", ("/job/train.py", 52))
    assert found.exception.frames[-1].code == "loss = model(batch)"


def test_a_task_of_rays_has_its_own_process_and_frames() -> None:
    text = FRAMES.replace("train.py", "driver.py") + (
        "ray.exceptions.RayTaskError(ValueError): ray::WorkerDict.step() (pid=17, ip=10.0.0.1, actor_id=8a)\n"
        '  File "/job/worker.py", line 9, in step\n    raise ValueError("boom")\nValueError: boom\n'
    )
    found = only(f"(WorkerDict pid=17, ip=10.0.0.1) [rank2]: hello\n{text}")
    assert (found.rank, found.exception.message, place(found)) == (2, "boom", ("/job/worker.py", 9))


def test_what_spawn_repeats_is_the_error_of_the_process_that_it_names() -> None:
    text = (
        FRAMES
        + "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 3 terminated with the following error:\n"
    )
    found = only(text + FRAMES.replace("52", "12") + "ValueError: boom\n")
    assert (found.rank, found.exception.message, place(found)[1]) == (3, "boom", 12)


def test_a_traceback_in_torchruns_table_is_of_the_rank_of_its_rows() -> None:
    table = """[0]:
  time      : 2026-11-21_13:45:01
  host      : node-a
  rank      : 11 (local_rank: 3)
  exitcode  : 1 (pid: 77)
  error_file: /tmp/error.json
  traceback : Traceback (most recent call last):
    File "/job/train.py", line 52, in train
      loss = model(batch)
  ValueError: boom
"""
    facts = read(table)
    assert [(each.rank, each.exception.message, place(each)) for each in facts.raised] == [
        (11, "boom", ("/job/train.py", 52))
    ]
    assert facts.rank_of_pid == {77: 11}


def test_a_loaders_worker_is_quoted_in_the_message() -> None:
    text = (
        FRAMES
        + "ValueError: Caught ValueError in DataLoader worker process 0.\nOriginal "
        + FRAMES.replace("52", "9")
        + "ValueError: boom\n"
    )
    found = only(text)
    assert place(found)[1] == 52 and found.exception.message.endswith("ValueError: boom")


def test_a_launchers_own_error_counts_where_it_is_no_echo_of_a_rank() -> None:
    agent = FRAMES.replace("/job/train.py", "/venv/torch/distributed/launcher/api.py")
    assert read(agent + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n").raised == ()
    assert (
        only(agent + "torch.distributed.DistNetworkError: address already in use\n").exception.type
        == "DistNetworkError"
    )


def test_an_error_whose_words_alone_are_there_counts_once() -> None:
    said = "CUDA error: an illegal memory access was encountered"
    line = f"[rank1]:[E1128 10:00:00.1 ProcessGroupNCCL.cpp:1897] [PG ID 0 PG GUID 0 Rank 1] Process group watchdog thread terminated with exception: {said}\n"
    assert [(each.rank, each.is_stated) for each in read(line * 3).raised] == [(1, True)]
    both = read(line + prefixed("[rank1]: ", f"{FRAMES}RuntimeError: {said}")).raised
    assert [each.is_stated for each in both] == [False]


def test_code_that_quotes_a_message_is_no_message() -> None:
    text = FRAMES.replace(
        "loss = model(batch)", 'raise RuntimeError("CUDA out of memory. Tried to allocate 1")'
    )
    assert read(f"{text}ValueError: boom\n").facts == ()
