"""Streams: disjoint over ranks, resumed exactly, and never silent when they stall."""

import json
import sys
import threading
from itertools import pairwise

import pytest
import torch

from nsa.config import ConfigError, DataConfig
from nsa.training import fineweb
from nsa.training.data import open_stream
from nsa.training.documents import decode, encode

TEXT = "Hunting a hang that was slowness. " * 200


@pytest.fixture
def text_directory(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").write_text(TEXT.upper())
    return tmp_path


@pytest.fixture
def documents(tmp_path):
    pytest.importorskip("datasets", minversion="2.20")
    lines = [json.dumps({"text": f"document {number} " * 3}) for number in range(40)]
    for name, part in (("a", lines[:20]), ("b", lines[20:])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(part))
    return tmp_path


def take(stream, count):
    return [stream.next_batch() for _ in range(count)]


def configs(text_directory):
    yield DataConfig(source="synthetic", seq_len=16, batch_size=2)
    yield DataConfig(source="text", path=str(text_directory), seq_len=16, batch_size=2)


def test_text_survives_encoding_and_decoding():
    assert decode(torch.tensor(encode("naïve φ"))) == "naïve φ"


def test_batches_hold_one_token_more_than_the_sequence(text_directory):
    for config in configs(text_directory):
        batch = open_stream(config).next_batch()
        assert (batch.shape, batch.dtype) == ((2, 17), torch.int64)


def test_ranks_together_read_what_one_rank_would(text_directory):
    for config in configs(text_directory):
        wide = open_stream(config.model_copy(update={"batch_size": 4}), rank=0, world_size=1)
        ranks = [open_stream(config, rank=rank, world_size=2) for rank in range(2)]
        for _ in range(3):
            assert torch.equal(wide.next_batch(), torch.cat([rank.next_batch() for rank in ranks]))


def test_a_resumed_stream_continues_exactly(text_directory):
    for config in configs(text_directory):
        stream = open_stream(config)
        take(stream, 3)
        state = stream.state_dict()
        resumed = open_stream(config)
        resumed.load_state_dict(state)
        assert all(map(torch.equal, take(stream, 3), take(resumed, 3)))


def test_evaluation_text_is_not_trained_on(tmp_path):
    (tmp_path / "numbers.txt").write_text("".join(f"{number:07d}." for number in range(400)))
    config = DataConfig(source="text", path=str(tmp_path), seq_len=8, batch_size=1)
    seen = [
        {decode(batch[0, :8]) for batch in take(open_stream(config, evaluation=e), 380)}
        for e in (False, True)
    ]
    assert len(seen[0]) == 380
    assert len(seen[1]) == 20
    assert not seen[0] & seen[1]


def test_text_that_is_too_short_or_missing_is_refused(tmp_path):
    (tmp_path / "short.txt").write_text("ab")
    for path in (str(tmp_path), str(tmp_path / "nowhere"), None):
        with pytest.raises(ConfigError):
            open_stream(DataConfig(source="text", path=path, seq_len=16))


def test_documents_are_streamed_in_order_and_packed(documents):
    stream = open_stream(DataConfig(source="fineweb", path=str(documents), seq_len=64))
    batches = take(stream, 5)
    stream.close()
    assert decode(batches[0][0]).startswith("document 0 document 0 document 0 \0document 1 ")
    assert all(before[0, -1] == after[0, 0] for before, after in pairwise(batches))


def test_a_resumed_document_stream_continues_exactly_even_in_another_epoch(documents):
    config = DataConfig(source="fineweb", path=str(documents), seq_len=64, batch_size=2)
    for taken in (1, 7, 12):
        stream, resumed = (open_stream(config, rank=1, world_size=2) for _ in range(2))
        take(stream, taken)
        resumed.load_state_dict(stream.state_dict())
        assert all(map(torch.equal, take(stream, 8), take(resumed, 8)))
        stream.close()
        resumed.close()


def test_ranks_stream_disjoint_documents(documents):
    seen = []
    for rank in range(2):
        stream = open_stream(
            DataConfig(source="fineweb", path=str(documents), seq_len=256), rank=rank, world_size=2
        )
        seen.append(set(decode(torch.cat([batch[0, :-1] for batch in take(stream, 2)])).split("\0")[:10]))
        stream.close()
    assert not seen[0] & seen[1]


def test_a_loader_that_stalls_is_an_error_that_names_the_wait(documents, monkeypatch):
    released = threading.Event()

    def stalls(*_):
        released.wait()
        raise ConnectionError

    monkeypatch.setattr(fineweb, "_open_dataset", stalls)
    config = DataConfig(source="fineweb", path=str(documents), loader_timeout_s=0.1)
    stream = open_stream(config)
    with pytest.raises(fineweb.LoaderTimeout, match=r"rank 0: no document from .* for 0.1 s"):
        stream.next_batch()
    released.set()
    stream.close()


def test_an_error_in_the_loader_reaches_the_trainer(documents, monkeypatch):
    def fails(*_):
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr(fineweb, "_open_dataset", fails)
    with pytest.raises(ConnectionError, match="no route"):
        open_stream(DataConfig(source="fineweb", path=str(documents))).next_batch()


def test_missing_datasets_is_an_error_with_the_command_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError) as caught:
        open_stream(DataConfig(source="fineweb"))
    assert caught.value.hint == "pip install datasets"
