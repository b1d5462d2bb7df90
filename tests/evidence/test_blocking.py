"""The table of blocking calls: what each spelling of a frame or kernel function says to the analysis and to the agent.

The spellings are those of the recordings and of the tests of stillness.
"""

import pytest
from support.mutation.ablate_rows import Row, rows_of, tables_in

from nsadiag.evidence import blocking
from nsadiag.evidence.blocking import (
    Waker,
    asleep_in,
    awaits_batch,
    by_coroutines,
    by_frames,
    by_kernel,
    by_native,
    by_wchan,
    has_own_limits,
    is_loader,
    is_lock,
    is_named_pipe,
    is_of_device,
    is_server,
    polling_library,
    serves_collectives,
    syscall_name,
    waits_for_device,
    waits_outside,
    wakers,
    within,
)
from nsadiag.evidence.documents.kernel import Descriptor
from nsadiag.evidence.documents.python_stacks import StackFrame

LIB = "/usr/lib/python3.11/"
TORCH = LIB + "site-packages/torch/"
THREAD, TASK, CHILD, TOOL, LOCAL = Waker.THREAD, Waker.TASK, Waker.CHILD, Waker.TOOL, Waker.LOCAL
PEER, OUTSIDE, CLIENT, NOBODY = Waker.PEER, Waker.OUTSIDE, Waker.CLIENT, Waker.NOBODY

# Functions of torch/distributed/distributed_c10d.py (torch 2.4 to 2.13) in which a rank waits for all, or for one.
OF_GROUPS = ("init_process_group", "_new_process_group_helper", "new_group", "_new_group_with_tag", "new_subgroups", "split_group", "destroy_process_group", "_store_based_barrier")  # fmt: skip
OF_TWO = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")
# File and function, the state of the wait by the analysis, and by the agent everyone who may end it.
FRAMES = [
    ("threading.py", "Condition.wait", "lock", THREAD | CLIENT),
    ("threading.py", "Event.wait", "lock", THREAD | CLIENT),
    ("threading.py", "Condition.wait_for", "lock", THREAD | CLIENT),
    ("threading.py", "Condition.__enter__", "lock", THREAD | CLIENT),
    ("threading.py", "Semaphore.acquire", "lock", THREAD | CLIENT),
    ("threading.py", "Thread.join", "lock", THREAD | CLIENT),
    ("threading.py", "Thread._wait_for_tstate_lock", "lock", THREAD | CLIENT),
    ("threading.py", "_shutdown", "leaving", THREAD | CLIENT),
    ("threading.py", "Thread._bootstrap_inner", None, THREAD | CLIENT),
    ("threading.py", "Thread.run", None, THREAD | CLIENT),
    ("queue.py", "Queue.get", "queue", THREAD),
    ("queue.py", "Queue.put", "queue", THREAD),
    ("queue.py", "Queue.join", "queue", THREAD),
    ("queue.py", "Queue.qsize", None, THREAD),
    ("concurrent/futures/_base.py", "Future.result", "lock", THREAD | CHILD),
    ("concurrent/futures/thread.py", "_python_exit", "leaving", THREAD),
    ("concurrent/futures/thread.py", "_worker", None, THREAD),
    ("concurrent/futures/process.py", "_ExecutorManagerThread.run", None, CHILD),
    ("multiprocessing/queues.py", "Queue.get", "queue", CHILD | LOCAL),
    ("multiprocessing/synchronize.py", "Event.wait", "lock", CHILD | LOCAL),
    ("multiprocessing/connection.py", "_ConnectionBase.poll", "pipe", CHILD | LOCAL),
    ("multiprocessing/process.py", "BaseProcess.join", "process", CHILD | LOCAL),
    ("multiprocessing/process.py", "BaseProcess._bootstrap", None, CHILD | LOCAL),
    ("multiprocessing/popen_fork.py", "Popen.poll", "process", CHILD | LOCAL),
    ("multiprocessing/util.py", "_exit_function", "leaving", CHILD | LOCAL),
    ("multiprocessing/pool.py", "ApplyResult.get", None, CHILD | LOCAL),
    ("subprocess.py", "Popen._wait", "process", CHILD | TOOL),
    ("socket.py", "SocketIO.readinto", "socket", OUTSIDE | CLIENT),
    ("ssl.py", "SSLSocket.read", "socket", OUTSIDE | CLIENT),
    ("http/client.py", "HTTPConnection.getresponse", "socket", OUTSIDE),
    ("http/server.py", "BaseHTTPRequestHandler.handle", None, CLIENT),
    ("urllib/request.py", "urlopen", None, NOBODY),
    ("selectors.py", "_PollLikeSelector.select", "socket", CLIENT),
    ("asyncio/base_events.py", "BaseEventLoop._run_once", None, TASK | CLIENT),
    ("site-packages/grpc/_common.py", "wait", None, CLIENT),
    ("site-packages/torch/distributed/rendezvous.py", "_tcp_rendezvous_handler", "rendezvous", PEER),
    *(
        ("site-packages/torch/distributed/distributed_c10d.py", each, "rendezvous", PEER)
        for each in OF_GROUPS
    ),
    *(("site-packages/torch/distributed/distributed_c10d.py", each, "transfer", PEER) for each in OF_TWO),
    ("site-packages/torch/distributed/distributed_c10d.py", "all_reduce", "collective", PEER),
    ("site-packages/torch/distributed/distributed_c10d.py", "wrapper", None, PEER),
    ("site-packages/torch/autograd/graph.py", "_engine_run_backward", "backward", PEER),
    ("site-packages/torch/distributed/utils.py", "_verify_param_shape_across_processes", "collective", PEER),
    ("site-packages/torch/distributed/utils.py", "_sync_params_and_buffers", "collective", PEER),
    ("site-packages/torch/utils/data/dataloader.py", "_BaseDataLoaderIter.__next__", "loader", CHILD),
    ("site-packages/torch/multiprocessing/spawn.py", "_wrap", None, CHILD | LOCAL),
    ("site-packages/torch/nn/modules/module.py", "_call_impl", None, NOBODY),
    ("site-packages/somebody/myqueue.py", "Queue.get", None, NOBODY),
]
WCHANS = [
    ("futex_do_wait", "futex", "lock", THREAD),
    ("futex_wait_queue_me", "futex", "lock", THREAD),
    ("hrtimer_nanosleep", "clock_nanosleep", "sleep", Waker.TIMER),
    ("do_wait", "wait4", "process", CHILD),
    ("anon_pipe_read", "read", None, CHILD | LOCAL),
    ("pipe_write", "write", None, CHILD | LOCAL),
    ("wait_woken", "recvfrom", None, OUTSIDE),
    ("inet_wait_for_connect", "connect", None, OUTSIDE),
    ("sk_stream_wait_memory", "sendto", None, OUTSIDE),
    ("sk_wait_data", "recvfrom", None, OUTSIDE),
    ("unix_stream_read_generic", "recvfrom", None, LOCAL),
    ("unix_stream_data_wait", "recvfrom", None, LOCAL),
    ("do_select", "select", None, CLIENT),
    ("do_sys_poll", "poll", None, CLIENT),
    ("pipe_read", "read", None, CHILD | LOCAL),
    ("anon_pipe_write", "write", None, CHILD | LOCAL),
    ("locks_lock_inode_wait", "flock", "io", LOCAL),
    ("sigsuspend", "rt_sigsuspend", "signal", LOCAL),
    ("inet_csk_accept", "accept", None, CLIENT),
    ("ep_poll", "epoll_wait", None, CLIENT),
    ("poll_schedule_timeout.constprop.0", "poll", None, CLIENT),
    ("do_sigtimedwait", "rt_sigtimedwait", "signal", LOCAL),
]
# Of libc, libstdc++, torch, gloo and NCCL, and of CPython's Modules/ (3.10 to 3.13).
NATIVE = [
    ("std::thread::join()", "lock"),
    ("__pthread_timedjoin_ex", "lock"),
    ("pthread_clockjoin_np", "lock"),
    ("c10d::TCPStore::get(std::string const&)", "store"),
    ("c10d::FileStore::wait", "store"),
    ("c10d::PrefixStore::get", "store"),
    ("c10d::detail::UvTcpSocket::read", "store"),
    ("c10d::tcputil::recvBytes", "store"),
    ("c10d::ProcessGroupGloo::SendWork::wait", "transfer"),
    ("c10d::ProcessGroupGloo::RecvWork::wait", "transfer"),
    ("gloo::transport::tcp::UnboundBuffer::waitRecv", "transfer"),
    ("gloo::transport::tcp::UnboundBuffer::waitSend", "transfer"),
    ("virtual thunk to c10d::ProcessGroup::recv", "transfer"),
    ("virtual thunk to c10d::ProcessGroup::send", "transfer"),
    ("c10d::ProcessGroupNCCL::WorkNCCL::synchronize", "collective"),
    ("gloo::allreduce", "collective"),
    ("ncclCommAbort", "collective"),
    ("pncclAllReduce", "collective"),
    ("PyThread_acquire_lock_timed", "lock"),
    ("_PyMutex_LockTimed", "lock"),
    ("rlock_acquire", "lock"),
    ("lock_acquire_lock", "lock"),
    ("os_waitpid_impl", "process"),
    ("os_wait4_impl", "process"),
    ("os_waitid_impl", "process"),
    ("time_sleep", "sleep"),
    ("pysleep", "sleep"),
    ("nanosleep", "sleep"),
    ("clock_nanosleep@@GLIBC_2.17", "sleep"),
    ("sock_recv_impl", "socket"),
    ("sock_connect_impl", "socket"),
    ("sock_accept_impl", "socket"),
    ("sock_send_impl", "socket"),
    ("select_poll_poll", "socket"),
    ("select_select_impl", "socket"),
    ("select_epoll_poll", "socket"),
    ("os_fsync_impl", "io"),
    ("os_open_impl", "io"),
    ("_io_FileIO_readall", "io"),
    ("fcntl_flock", "io"),
    ("fcntl_lockf_impl", "io"),
    ("_Py_open", "io"),
    ("cudaStreamSynchronize", None),
]
# System call, what its first argument is, the state.
CALLS = [
    ("read", "pipe", "pipe"),
    ("read", "tcp", "socket"),
    ("accept", "socket", "socket"),
    ("recvmsg", "unix", "socket"),
    ("pwrite64", "file", "io"),
    ("flock", "file", "io"),
    ("fsync", None, "io"),
    ("fdatasync", None, "io"),
    ("futex", None, "lock"),
    ("nanosleep", None, "sleep"),
    ("waitid", None, "process"),
    ("pause", None, "signal"),
    ("epoll_wait", "eventpoll", None),
    ("openat", None, None),
    (None, "pipe", None),
]
SERVERS = [
    ("socketserver.py", True),
    ("site-packages/uvicorn/server.py", True),
    ("site-packages/grpc/_server.py", True),
    ("site-packages/hypercorn/asyncio/run.py", True),
    ("site-packages/waitress/server.py", True),
    ("site-packages/gunicorn/arbiter.py", True),
    ("site-packages/aiohttp/web.py", True),
    ("site-packages/tornado/ioloop.py", True),
    ("site-packages/uvicorn/config.py", False),
    ("site-packages/my_socketserver.py", False),
]
# They sleep between attempts: torch's extensions and filelock for a lock's file, the others for an answer.
POLLERS = [
    ("site-packages/filelock/_api.py", "filelock"),
    ("site-packages/torch/utils/file_baton.py", "file_baton.py"),
    ("site-packages/torch/utils/_filelock.py", "_filelock.py"),
    *(
        (f"site-packages/{each}/client.py", each)
        for each in (
            "huggingface_hub", "fsspec", "s3fs", "gcsfs", "boto3", "botocore", "urllib3", "requests", "redis",
            "wandb", "mlflow", "ray", "fasteners", "portalocker", "etcd3", "paramiko",
        )
    ),
    ("site-packages/torch/utils/data/dataloader.py", None),
]  # fmt: skip


def frame(name: str, file: str) -> StackFrame:
    return StackFrame(name=name, filename=file, line=1)


def state_of(row: blocking.Blocking | None) -> str | None:
    return row.state if row else None


@pytest.mark.parametrize(("file", "function", "state", "waker"), FRAMES)
def test_a_frame_tells_what_the_wait_is_for_and_who_ends_it(
    file: str, function: str, state: str | None, waker: Waker
) -> None:
    assert state_of(by_frames([frame(function, LIB + file)])) == state
    assert wakers(LIB + file) == waker


@pytest.mark.parametrize(("wchan", "call", "state", "waker"), WCHANS)
def test_a_kernel_function_tells_the_call(wchan: str, call: str, state: str | None, waker: Waker) -> None:
    row = by_wchan(wchan)
    assert row is not None
    assert (row.syscall, row.state, row.waker) == (call, state, waker)


@pytest.mark.parametrize("wchan", ["", "0", None, "do_signal_stop"])
def test_no_wait_is_made_up_for_a_kernel_function_that_is_none(wchan: str | None) -> None:
    assert by_wchan(wchan) is None


@pytest.mark.parametrize(("name", "state"), NATIVE)
def test_a_native_function_tells_what_the_wait_is_for(name: str, state: str | None) -> None:
    assert state_of(by_native([name])) == state


@pytest.mark.parametrize(("call", "kind", "state"), CALLS)
def test_where_a_call_may_wait_for_anything_its_descriptor_tells(
    call: str | None, kind: str | None, state: str | None
) -> None:
    assert state_of(by_kernel(call, Descriptor(fd=3, kind=kind) if kind else None)) == state


def test_what_a_wait_is_for_counts_and_not_what_it_is_made_of() -> None:
    waits = [frame("wait", LIB + "threading.py"), frame("get", LIB + "queue.py")]
    assert state_of(by_frames(waits)) == "queue"
    loader = [*waits, frame("_try_get_data", TORCH + "utils/data/dataloader.py")]
    assert state_of(by_frames(loader)) == "loader"


def test_the_caller_of_a_wait_is_the_first_file_that_only_passes_it_on() -> None:
    inner = [LIB + "socket.py", LIB + "http/client.py"]
    hub = [LIB + "urllib/request.py", TORCH + "hub.py", "/home/me/train.py"]
    assert within([*inner, *hub]) == (inner, hub[0])
    assert within(inner) == (inner, "")
    assert within([TORCH + "utils/data/dataloader.py"])[0] == []


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("threading.py", True),
        ("asyncio/base_events.py", True),
        ("site-packages/torch/distributed/distributed_c10d.py", True),
        ("site-packages/torch/autograd/graph.py", True),
        ("site-packages/torch/utils/data/dataloader.py", False),
        ("json/encoder.py", False),
    ],
)
def test_a_thread_in_a_wait_lets_go_of_the_interpreter(file: str, expected: bool) -> None:
    assert blocking.lets_go(LIB + file) == expected


def told() -> list[object]:
    """What the table says of all examples: states and wakers, whichever row says so."""
    rows = (
        *(by_frames([frame(function, LIB + file)]) for file, function, _, _ in FRAMES),
        *(by_wchan(wchan) for wchan, _, _, _ in WCHANS),
        *(by_native([name]) for name, _ in NATIVE),
        *(by_kernel(call, Descriptor(fd=3, kind=kind) if kind else None) for call, kind, _ in CALLS),
    )
    return [
        *((row.state, row.waker) if row else None for row in rows),
        *(wakers(LIB + file) for file, _, _, _ in FRAMES),
        *(is_server(LIB + file) for file, _ in SERVERS),
        *(polling_library(LIB + file) for file, _ in POLLERS),
        *(
            has_own_limits(file)
            for file in (TORCH + "hub.py", LIB + "site-packages/nsadiag/worker/runtime.py")
        ),
        *(asleep_in(wchan) for wchan in (*(each[0] for each in WCHANS), *SOCKETS)),
        *(waits_outside([frame("wait", LIB + file)], None) for file in OUTSIDE_FILES),
        *(waits_outside([], wchan) for wchan in (*SOCKETS, "unix_stream_data_wait", "do_wait")),
        *(is_named_pipe(wchan) for wchan in PIPES),
        *(is_lock(LIB + file) for file in ("threading.py", "queue.py", "asyncio/queues.py")),
        *((row.state, row.waker) if row else None for row in map(coroutine, COROUTINES)),
        *(question(name) for name in NATIVE_THREADS for question in (serves_collectives, is_of_device)),
        *(waits_for_device([frame("synchronize", TORCH + file)]) for file in DEVICE_FILES),
    ]


DEVICE_FILES = ("cuda/__init__.py", "cuda/streams.py")


# Coroutines that wait for the world, by file and name.
COROUTINES = [
    ("asyncio/base_events.py", "Server.serve_forever"),
    ("asyncio/tasks.py", "sleep"),
    ("asyncio/subprocess.py", "Process.wait"),
    ("asyncio/streams.py", "StreamReader.read"),
    ("asyncio/base_events.py", "BaseEventLoop.create_connection"),
    ("asyncio/unix_events.py", "_UnixSelectorEventLoop.create_unix_connection"),
    ("asyncio/selector_events.py", "BaseSelectorEventLoop.sock_recv"),
    ("asyncio/sslproto.py", "SSLProtocol.wait"),
]


def coroutine(example: tuple[str, str]) -> blocking.Blocking | None:
    file, name = example
    return by_coroutines([frame(name, LIB + file)])


# Kernel functions in which a thread sleeps that waits for a socket, and for the other end of a pipe.
SOCKETS = ("inet_wait_for_connect", "wait_woken", "sk_stream_wait_memory", "inet_csk_accept", "ep_poll", "poll_schedule_timeout", "do_select")  # fmt: skip
PIPES = ("wait_for_partner", "fifo_open", "pipe_read", "pipe_write", "anon_pipe_read", "anon_pipe_write")
OUTSIDE_FILES = ("ssl.py", "socket.py", "http/client.py", "subprocess.py")
# Of torch's autograd engine and NCCL group, of gloo, of the driver, of NCCL itself.
NATIVE_THREADS = (
    "pt_autograd_0",
    "pt_nccl_watchdg",
    "pt_elastic",
    "gloo_tcp_loop",
    "cuda00001400006",
    "nccl_proxy",
)


NUMBERS = (
    "SYSCALLS",
    "MACHINES",
    "CONTENDED",
)  # the kernel's, not names that somebody may spell in another way
ROWS = [
    row for table in tables_in([blocking]) if table.name not in NUMBERS for row in rows_of(table)
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.table.name} {row.text}"[:90] for row in ROWS])
def test_an_example_shows_each_row_and_each_of_its_alternatives(
    row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = told()
    try:
        monkeypatch.setattr(blocking, row.table.name, row.without)
        forget()
        assert told() != before
    finally:
        monkeypatch.undo()
        forget()


def forget() -> None:
    """Answers of before."""
    for function in vars(blocking).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


def test_every_call_has_a_number() -> None:
    assert {row.syscall for row in blocking.KERNEL_CALLS} <= set(blocking.SYSCALLS)


@pytest.mark.parametrize(
    ("number", "machine", "name"),
    [
        (202, "x86_64", "futex"),
        (202, "aarch64", "accept"),
        (98, "aarch64", "futex"),
        (39, "x86_64", None),  # getpid: nobody waits in it
        (-1, "aarch64", None),  # in no call; what a machine lacks has the same number in the table
        (202, "riscv64", None),
    ],
)
def test_a_system_call_has_its_number_by_machine(number: int, machine: str, name: str | None) -> None:
    assert syscall_name(number, machine) == name


@pytest.mark.parametrize(("file", "expected"), SERVERS)
def test_the_loop_of_a_server_is_told_by_its_file(file: str, expected: bool) -> None:
    assert is_server(LIB + file) == expected


@pytest.mark.parametrize(("file", "library"), POLLERS)
def test_a_library_that_polls_is_named(file: str, library: str | None) -> None:
    assert polling_library(LIB + file) == library


def test_only_the_wait_for_a_batch_is_one_of_the_loader() -> None:
    file = TORCH + "utils/data/dataloader.py"
    assert awaits_batch("_MultiProcessingDataLoaderIter._try_get_data", file)
    assert not awaits_batch("_MultiProcessingDataLoaderIter._shutdown_workers", file)
    assert not awaits_batch("_try_get_data", "/home/me/loaders.py")
    assert is_loader(file)


def test_waits_of_torch_and_of_probes_have_limits_of_their_own() -> None:
    assert has_own_limits(TORCH + "distributed/distributed_c10d.py")
    assert has_own_limits(LIB + "site-packages/nsadiag/worker/replacement.py")
    assert not has_own_limits("/home/me/train.py")
