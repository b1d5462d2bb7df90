"""FineWeb-Edu, or a local data set of documents like it, streamed through HuggingFace `datasets`."""

from __future__ import annotations

import importlib.util
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsa.config import ConfigError, DataConfig
from nsa.training.documents import END_OF_DOCUMENT, encode

HUB_NAME, HUB_SUBSET = "HuggingFaceFW/fineweb-edu", "sample-10BT"
EVAL_SHARE = 100  # one document in so many is kept for evaluation
PREFETCHED_DOCUMENTS = 64


class LoaderTimeout(TimeoutError):
    """The loader gave no document for data.loader_timeout_s seconds."""


class FinewebStream:
    """Documents packed end to end into batches. A thread reads ahead, so that a stalled source is an
    error and not a hang.

    The state is the position of the data set after the last document taken, and the tokens not yet used.
    """

    common_state = False  # every rank reads its own share
    end_of_document = END_OF_DOCUMENT

    def __init__(self, config: DataConfig, *, rank: int, world_size: int, evaluation: bool = False) -> None:
        if importlib.util.find_spec("datasets") is None:
            raise ConfigError("data.source fineweb needs the package datasets", "pip install datasets")
        if config.path is not None and not Path(config.path).exists():
            raise ConfigError(
                f"data.path is {config.path}, which does not exist", "name a directory, or null"
            )
        self._config = config
        self._shard = (rank, world_size)
        self._evaluation = evaluation
        self._state: dict[str, Any] = {"epoch": 0, "documents": 0, "dataset": None}
        self._tokens = np.empty(0, dtype=np.uint8)
        self._reader: _Reader | None = None

    def next_batch(self) -> Tensor:
        batch_size, seq_len = self._config.batch_size, self._config.seq_len
        wanted = batch_size * seq_len + 1
        parts, count = [self._tokens], len(self._tokens)
        while count < wanted:
            parts.append(self._next_document())
            count += len(parts[-1])
        tokens = np.concatenate(parts)
        self._tokens = tokens[wanted - 1 :]  # the last target is the next batch's first input
        starts = np.arange(batch_size)[:, None] * seq_len
        return torch.from_numpy(tokens[starts + np.arange(seq_len + 1)].astype(np.int64))

    def state_dict(self) -> dict[str, Any]:
        return {**self._state, "tokens": self._tokens.tobytes()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.close()
        self._state = {key: value for key, value in state.items() if key != "tokens"}
        self._tokens = np.frombuffer(state["tokens"], dtype=np.uint8)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    def _next_document(self) -> np.ndarray:
        if self._reader is None:
            self._reader = _Reader(_documents(self._config, self._shard, self._evaluation, self._state))
        try:
            item = self._reader.items.get(timeout=self._config.loader_timeout_s)
        except queue.Empty:
            raise LoaderTimeout(
                f"rank {self._shard[0]}: no document from {self._config.path or HUB_NAME} for "
                f"{self._config.loader_timeout_s:g} s, after {self._state['documents']} documents; "
                "check the network or the disk, or raise data.loader_timeout_s"
            ) from None
        if isinstance(item, BaseException):
            raise item
        document, self._state = item
        return document


class _Reader:
    """A daemon thread that reads ahead; its exceptions are passed on as items."""

    def __init__(self, documents: Iterator[tuple[np.ndarray, dict[str, Any]]]) -> None:
        self.items: queue.Queue[Any] = queue.Queue(maxsize=PREFETCHED_DOCUMENTS)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(documents,), name="fineweb", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, unless its source blocks for more than a second."""
        self._stopping.set()
        self._thread.join(timeout=1.0)

    def _read(self, documents: Iterator[tuple[np.ndarray, dict[str, Any]]]) -> None:
        try:
            for item in documents:
                if not self._put(item):
                    return
        except BaseException as error:
            self._put(error)

    def _put(self, item: Any) -> bool:
        while not self._stopping.is_set():
            try:
                self.items.put(item, timeout=0.2)
            except queue.Full:
                continue
            return True
        return False


def _documents(
    config: DataConfig, shard: tuple[int, int], evaluation: bool, state: dict[str, Any]
) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    """Yield this rank's documents from `state` on, over all epochs, each with the state after it."""
    dataset = _open_dataset(config.path, shard)
    epoch, count = state["epoch"], state["documents"]
    dataset.set_epoch(epoch)
    if state["dataset"] is not None:
        dataset.load_state_dict(state["dataset"])
    while True:
        before = count
        for row in dataset:
            count += 1
            if (count % EVAL_SHARE == 0) == evaluation:
                document = np.append(encode(row["text"]), np.uint8(END_OF_DOCUMENT))
                yield document, {"epoch": epoch, "documents": count, "dataset": dataset.state_dict()}
        if count == before and epoch > state["epoch"]:  # the first epoch may resume at its end
            raise ConfigError(f"{config.path or HUB_NAME} holds no documents for rank {shard[0]}", "add some")
        epoch += 1
        dataset.set_epoch(epoch)  # otherwise it restarts from the loaded state


def _open_dataset(path: str | None, shard: tuple[int, int]) -> Any:
    # Imported late because it is optional, and in the reader's thread because it may wait for the network.
    from datasets import load_dataset
    from datasets.distributed import split_dataset_by_node

    if path is None:
        dataset = load_dataset(HUB_NAME, HUB_SUBSET, split="train", streaming=True)
    else:
        dataset = load_dataset(path, split="train", streaming=True)
    return split_dataset_by_node(dataset, rank=shard[0], world_size=shard[1])
