"""Quiet phases in which a rank waits for a thread of its own, a timer or an event loop."""

from __future__ import annotations

import asyncio
import queue
import sched
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from job import Job, naps, shape


def start(run, *arguments) -> threading.Thread:
    thread = threading.Thread(target=run, args=arguments, daemon=True)
    thread.start()
    return thread


@shape()
def lock_held_long(job: Job) -> None:
    """A thread that exports statistics holds the lock that the training step takes."""
    if not job.is_quiet_one:
        return
    lock, held = threading.Lock(), threading.Event()

    def export() -> None:
        with lock:
            held.set()
            time.sleep(job.seconds)

    start(export)
    held.wait()
    with lock:
        pass


@shape()
def lock_held_in_naps(job: Job) -> None:
    if not job.is_quiet_one:
        return
    lock, held = threading.RLock(), threading.Event()

    def upload() -> None:
        with lock:
            held.set()
            naps(job, job.seconds)

    start(upload)
    held.wait()
    with lock:
        pass


@shape()
def slow_producer_thread(job: Job) -> None:
    if not job.is_quiet_one:
        return
    rows: queue.Queue[int] = queue.Queue(maxsize=2)

    def produce() -> None:
        for row in range(4):
            time.sleep(job.seconds / 4)
            rows.put(row)

    start(produce)
    for _ in range(4):
        rows.get(timeout=job.draw.choice((None, 300)))


@shape()
def slow_consumer_thread(job: Job) -> None:
    """The queue of an asynchronous logger is full."""
    if not job.is_quiet_one:
        return
    rows: queue.Queue[int] = queue.Queue(maxsize=1)

    def consume() -> None:
        for _ in range(4):
            time.sleep(job.seconds / 4)
            rows.get()

    consumer = start(consume)
    for row in range(4):
        rows.put(row)
    consumer.join()


@shape()
def event_of_a_timer(job: Job) -> None:
    if job.is_quiet_one:
        ready = threading.Event()
        threading.Timer(job.seconds, ready.set).start()
        ready.wait()


@shape()
def future_of_a_thread(job: Job) -> None:
    if job.is_quiet_one:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(naps, job, job.seconds).result()


@shape()
def future_set_by_hand(job: Job) -> None:
    if not job.is_quiet_one:
        return
    answer: Future[int] = Future()

    def later() -> None:
        naps(job, job.seconds, 0.5, 5.0)
        answer.set_result(1)

    start(later)
    answer.result()


@shape()
def condition_of_a_loader(job: Job) -> None:
    if not job.is_quiet_one:
        return
    ready, filled = threading.Condition(), []

    def fill() -> None:
        time.sleep(job.seconds)
        with ready:
            filled.append(1)
            ready.notify_all()

    start(fill)
    with ready:
        ready.wait_for(lambda: filled)


@shape()
def joined_upload(job: Job) -> None:
    if job.is_quiet_one:
        start(naps, job, job.seconds, 0.1, 6.0).join()


@shape()
def sleeping_scheduler(job: Job) -> None:
    if job.is_quiet_one:
        times = sched.scheduler()
        for share in (0.1, 0.5, 1.0):
            times.enter(job.seconds * share, 1, time.monotonic)
        times.run()


@shape()
def scheduler_in_a_thread(job: Job) -> None:
    if job.is_quiet_one:
        times, done = sched.scheduler(), threading.Event()
        times.enter(job.seconds, 1, done.set)
        start(times.run)
        done.wait()


@shape()
def sleep_in_asyncio(job: Job) -> None:
    if job.is_quiet_one:
        asyncio.run(asyncio.sleep(job.seconds))


@shape()
def queue_in_asyncio(job: Job) -> None:
    async def rollouts() -> None:
        rows: asyncio.Queue[int] = asyncio.Queue()

        async def produce() -> None:
            for row in range(3):
                await asyncio.sleep(job.seconds / 3)
                await rows.put(row)

        producer = asyncio.create_task(produce())
        for _ in range(3):
            await rows.get()
        await producer

    if job.is_quiet_one:
        asyncio.run(rollouts())


@shape()
def thread_in_asyncio(job: Job) -> None:
    async def call() -> None:
        await asyncio.to_thread(time.sleep, job.seconds)

    if job.is_quiet_one:
        asyncio.run(call())


@shape()
def semaphore_of_transfers(job: Job) -> None:
    """Four transfers, of which two may run at a time."""
    if not job.is_quiet_one:
        return
    places = threading.Semaphore(2)

    def transfer() -> None:
        time.sleep(job.seconds / 2)
        places.release()

    for _ in range(4):
        places.acquire()
        start(transfer)
    for _ in range(2):
        places.acquire()


@shape()
def barrier_of_threads(job: Job) -> None:
    if job.is_quiet_one:
        gate = threading.Barrier(2)

        def come_late() -> None:
            time.sleep(job.seconds)
            gate.wait()

        start(come_late)
        gate.wait()


@shape()
def alarm_awaited(job: Job) -> None:
    """A signal at a set time ends a maintenance window."""
    if job.is_quiet_one:
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, job.seconds)
        signal.pause()


@shape()
def cooldown_of_all_ranks(job: Job) -> None:
    time.sleep(job.seconds)


@shape(1)
def notebook(job: Job) -> None:
    """Cells on an event loop, with a reader who thinks in between."""

    async def session() -> None:
        for _ in range(3):
            await asyncio.sleep(job.seconds / 3)
            job.train(3)

    asyncio.run(session())
