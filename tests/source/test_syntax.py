"""Sources are parsed by threads that do not disturb each other."""

from __future__ import annotations

import gc
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsadiag.source.syntax import parse


@pytest.fixture
def collections_let_others_run() -> Iterator[None]:
    """As finalizers of a program do, between any two nodes of a tree."""

    def pause(*_: object) -> None:
        time.sleep(1e-4)

    threshold = gc.get_threshold()
    gc.callbacks.append(pause)
    gc.set_threshold(200)
    yield
    gc.callbacks.remove(pause)
    gc.set_threshold(*threshold)


def test_threads_may_parse_at_once(collections_let_others_run: None) -> None:
    text = Path(subprocess.__file__).read_text()
    failed: list[BaseException] = []

    def at_depth(frames: int) -> None:
        if frames:
            return at_depth(frames - 1)
        try:
            for _ in range(3):
                parse(text)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=at_depth, args=(3 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
