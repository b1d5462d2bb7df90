"""Stacks that debuggers print, and what a verdict makes of them."""

from pathlib import Path

import pytest

from nsadiag.analysis.ingest.logs import numbered, read_log
from nsadiag.analysis.verdict import judge_evidence
from nsadiag.evidence.messages import NativeStack

GDB = """[New LWP 2390]
Thread 2 (Thread 0xfffe2a7fe0e0 (LWP 2390) "NCCL Progress 0"):
#0  0x0000ffff9c3f1a24 in __futex_abstimed_wait_common64 () from /lib/libc.so.6
#1  0x0000ffff10e2b7c4 in ncclProxyGetPostedOps (proxyState=0x3b0f2a10, added=0xfffe2a7fd5c4) at proxy.cc:791

Thread 1 (Thread 0xffff9c8b2020 (LWP 2211) "python3"):
#0  0x0000ffff10e29c38 in ?? () from /usr/lib/libcuda.so.1
#1  0x0000ffff10e29c38 in cudaStreamSynchronize () from /usr/lib/libcudart.so.12
#2  0x0000ffff2c5d1b90 in c10d::ProcessGroupNCCL::_allgather_base (this=0x3b9d1c00, output_tensor=...) at x.cpp:1
"""
LLDB = """* thread #1, name = 'python3', stop reason = signal SIGSTOP
  * frame #0: 0x00007fff libc.so.6`__poll + 79
    frame #1: 0x00007ffe libtorch_cpu.so`gloo::transport::tcp::UnboundBuffer::waitRecv + 12
"""
CUDA_GDB = """$ cuda-gdb -p 52231
Attaching to process 52231
(cuda-gdb) info cuda kernels
  Kernel Parent Dev Grid Status   SMs Mask GridDim BlockDim Invocation
*      0      -   0 52162520 Active 0x00000001 (1,1,1) (64,1,1) ncclReduceRingLLKernel_sum_f64()
"""


def stacks(text: str) -> list[NativeStack]:
    return read_log(numbered(text)).of(NativeStack)


def test_threads_of_gdb_have_their_functions_and_the_process_its_pid() -> None:
    progress, main = stacks(GDB)
    assert (progress.thread, progress.functions) == (
        2,
        ("__futex_abstimed_wait_common64", "ncclProxyGetPostedOps"),
    )
    assert (main.thread, main.pid) == (1, 2211)
    assert main.functions == ("cudaStreamSynchronize", "c10d::ProcessGroupNCCL::_allgather_base")


@pytest.mark.parametrize(
    ("text", "inner"),
    [(LLDB, "__poll"), (CUDA_GDB, "ncclReduceRingLLKernel_sum_f64")],
    ids=["lldb", "cuda-gdb"],
)
def test_other_debuggers_are_read(text: str, inner: str) -> None:
    (found,) = stacks(text)
    assert found.functions[0] == inner


def test_frames_of_other_stacks_are_not_a_debuggers() -> None:
    text = (
        "[rank0]:[E x.cpp:7] Stack trace of the failed collective:\n#0 all_reduce from /job/lib.py:2806\n"
        "frame #0: c10::Error::Error(c10::SourceLocation) + 0x96 (0x7f in libc10.so)\n#0 step from /job/a.py:3\n"
    )
    assert stacks(text) == []


def test_one_process_in_a_debugger_tells_where_it_stands_and_blames_nobody(tmp_path: Path) -> None:
    (tmp_path / "gdb.txt").write_text(GDB)
    verdict = judge_evidence(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("unknown", ())
    assert "in cudaStreamSynchronize, called by c10d::ProcessGroupNCCL::_allgather_base" in verdict.summary
    assert "thread apply all bt" in (verdict.next or "")


def of_rank(pid: int, *frames: str) -> str:
    """What `gdb -p PID -ex 'thread apply all bt' -ex py-bt` prints."""
    python = "".join(f'  File "/job/{frame}\n    call()\n' for frame in frames)
    return (
        f'Attaching to process {pid}\n\nThread 2 (Thread 0x7f01 (LWP {pid + 1}) "watchdog"):\n'
        "#0  0x00007f05 in pthread_cond_timedwait () from /lib/libpthread.so.0\n\n"
        f'Thread 1 (Thread 0x7f00 (LWP {pid}) "python"):\n#0  0x00007f53 in cudaStreamSynchronize () from /lib/libcudart.so.12\n\n'
        f"(gdb) py-bt\nTraceback (most recent call first):\n{python}\n"
    )


WAITS = ('train.py", line 52, in step', 'train.py", line 71, in <module>')
LIBRARY = '../opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2806, in all_reduce'
READS = ('data.py", line 18, in next_batch', 'train.py", line 48, in step', 'train.py", line 71, in <module>')


@pytest.mark.parametrize("headed", [True, False])
def test_pythons_frames_in_a_debugger_are_stacks_of_ranks(tmp_path: Path, headed: bool) -> None:
    texts = [of_rank(500 + r, *(READS if r == 2 else (LIBRARY, *WAITS))) for r in range(4)]
    if headed:
        whole = "".join(f"===== rank {rank} =====\n{text}" for rank, text in enumerate(texts))
        (tmp_path / "gdb.txt").write_text(whole)
    else:
        for rank, text in enumerate(texts):
            (tmp_path / f"gdb_rank{rank}.txt").write_text(text)
    verdict = judge_evidence(tmp_path)
    assert (verdict.outcome, verdict.cls, verdict.guilty_ranks) == ("hung", "missing_rank", (2,))
    assert verdict.where is not None
    assert (verdict.where.file, verdict.where.line) == ("/job/data.py", 18)
    assert "wait in all_reduce" in verdict.summary
    assert not [each for each in verdict.evidence if "both snapshots" in each.claim]


def test_a_heading_far_above_a_process_is_not_its_rank(tmp_path: Path) -> None:
    (tmp_path / "gdb.txt").write_text("rank 3 is slow\n" + 20 * "step\n" + of_rank(500, *READS))
    assert all(stack.rank is None for stack in stacks((tmp_path / "gdb.txt").read_text()))
