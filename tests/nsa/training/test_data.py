"""Streams: disjoint over ranks, resumed exactly, and never silent when they stall."""

import json
import subprocess
import sys
import threading
from itertools import pairwise

import pytest
import torch

from nsa.config import ConfigError, DataConfig
from nsa.options import load_train_config
from nsa.tokenize import main as tokenize
from nsa.train import train
from nsa.training import fineweb
from nsa.training.corpus import TextFiles, TokensFile, shuffled
from nsa.training.data import open_stream, pack
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


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """The file of a byte-level tokenizer with 300 tokens, trained on some text."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator([TEXT], vocab_size=300, special_tokens=["<|endoftext|>"])
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(file))
    return file


@pytest.fixture
def token_ids(text_directory, tokenizer):
    out = text_directory.parent / f"{text_directory.name}-tokens"
    assert tokenize([str(text_directory), "--out", str(out), "--tokenizer", str(tokenizer)]) == 0
    return out


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


def test_text_is_read_as_if_its_files_were_one_with_an_end_behind_each(tmp_path):
    contents = [b"one", b"", b"three and more", b"4"]
    for number, content in enumerate(contents):
        (tmp_path / str(number)).write_bytes(content)
    whole = b"".join(content + b"\0" for content in contents)
    text = TextFiles(tmp_path)
    assert text.n_tokens == len(whole)
    for first in range(len(whole)):
        for n in range(1, len(whole) - first + 1):
            assert text.read(first, n).tobytes() == whole[first : first + n]


@pytest.mark.parametrize("n", [1, 2, 3, 19, 64, 1000])
def test_an_order_names_each_number_once_and_epochs_differ(n):
    orders = [[shuffled(i, n, f"0 {epoch}") for i in range(n)] for epoch in range(3)]
    assert all(sorted(order) == list(range(n)) for order in orders)
    if n > 10:
        assert orders[0] != orders[1] != orders[2]
        moved = sum(abs(a - b) for a, b in enumerate(orders[0])) / n
        assert 0.2 * n < moved < 0.5 * n  # a third of n for a random order


def test_token_ids_are_those_of_the_tokenizer_with_an_end_behind_each_document(token_ids, tokenizer):
    from tokenizers import Tokenizer

    corpus, encoder = TokensFile(token_ids), Tokenizer.from_file(str(tokenizer))
    assert corpus.vocab_size == encoder.get_vocab_size() and corpus.end_of_document == 0
    documents = [encoder.encode(text).ids for text in (TEXT, TEXT.upper())]
    expected = [*documents[0], 0, *documents[1], 0]
    assert corpus.read(0, corpus.n_tokens).tolist() == expected
    assert (token_ids / "tokens.bin").stat().st_size == 2 * len(expected)


def test_a_large_vocabulary_takes_four_bytes_an_id(tmp_path, monkeypatch, tokenizer):
    from tokenizers import Tokenizer

    encoder = Tokenizer.from_file(str(tokenizer))
    encoder.add_tokens([f"<{i}>" for i in range(2**16)])
    encoder.save(str(tmp_path / "large.json"))
    (tmp_path / "rows.jsonl").write_text('{"text": "<65535>a"}\n\n{"text": "b"}\n')
    arguments = [
        str(tmp_path / "rows.jsonl"),
        "--out",
        str(tmp_path / "out"),
        "--tokenizer",
        str(tmp_path / "large.json"),
    ]
    assert tokenize(arguments) == 0
    corpus = TokensFile(tmp_path / "out")
    ids = corpus.read(0, corpus.n_tokens).tolist()
    assert len(ids) == 5 and ids[0] > 2**16 and ids[2] == ids[4] == 0
    assert corpus.read(0, 1).dtype == "uint32"


def test_token_ids_train_with_documents_apart_and_resume_in_order(text_directory, token_ids, tokenizer):
    config = DataConfig(source="tokens", path=str(token_ids), seq_len=16, batch_size=2)
    wide = open_stream(config.model_copy(update={"batch_size": 4}), vocab_size=300)
    ranks = [open_stream(config, vocab_size=300, rank=rank, world_size=2) for rank in range(2)]
    for _ in range(3):
        assert torch.equal(wide.next_batch(), torch.cat([rank.next_batch() for rank in ranks]))
    resumed = open_stream(config, vocab_size=300, rank=1, world_size=2)
    resumed.load_state_dict(ranks[1].state_dict())
    assert all(map(torch.equal, take(ranks[1], 40), take(resumed, 40)))
    rows = text_directory / "short.jsonl"
    rows.write_text("".join(json.dumps({"text": f"{n} of a hang. " * 3}) + "\n" for n in range(200)))
    short = token_ids.with_name("short")
    assert tokenize([str(rows), "--out", str(short), "--tokenizer", str(tokenizer)]) == 0
    options = ["data.source=tokens", f"data.path={short}", "model.vocab_size=300", "train.eval_every=2"]
    losses = train(load_train_config("tiny", options))
    assert losses != train(load_train_config("tiny", [*options, "data.documents=joined"]))


def test_the_border_of_documents_is_the_token_that_ends_them():
    tokens = torch.tensor([[5, 7, 3, 0, 7, 2, 4]])
    batch = pack(tokens, DataConfig(source="tokens", path="."), end_of_document=7)
    assert batch.cu_seqlens[:4].tolist() == [0, 2, 5, 6]
    assert batch.targets.tolist() == [[7, -100, 0, 7, -100, 4]]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: (path / "tokens.json").unlink(), "tokens.json cannot be used"),
        (lambda path: (path / "tokens.json").write_text("[1]"), "tokens.json cannot be used"),
        (lambda path: (path / "tokens.bin").write_bytes(b"12"), "holds 2 bytes, and tokens.json needs"),
        (lambda path: None, "model.vocab_size is 256, and .* has ids below 2"),
    ],
)
def test_token_ids_that_do_not_fit_are_refused(token_ids, spoil, message):
    spoil(token_ids)
    with pytest.raises(ConfigError, match=message):
        open_stream(DataConfig(source="tokens", path=str(token_ids), seq_len=16))


def test_what_cannot_be_tokenized_is_one_line_and_a_hint(tmp_path, tokenizer, capsys):
    (tmp_path / "bad.jsonl").write_text('{"txt": 1}')
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for text, file, extra, said in (
        ("nowhere", tokenizer, [], "nowhere does not exist"),
        ("bad.jsonl", tokenizer, [], "bad.jsonl cannot be read"),
        ("binary", tokenizer, [], "binary cannot be read"),
        ("bad.jsonl", tmp_path / "no.json", [], "no.json is no tokenizer"),
        ("bad.jsonl", tokenizer, ["--end", "<fin>"], "no token <fin>"),
    ):
        out = tmp_path / "out"
        assert tokenize([str(tmp_path / text), "--out", str(out), "--tokenizer", str(file), *extra]) == 2
        printed = capsys.readouterr().err
        assert said in printed and "\nhint: " in printed and not out.exists()


def test_a_rank_holds_no_text(tmp_path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**31)
    program = """
import resource, sys
from nsa.config import DataConfig
from nsa.training.data import open_stream, pack
stream = open_stream(DataConfig(source="text", path=sys.argv[1], seq_len=64))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(200):
    stream.next_batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 20_000  # KiB; the text is 2 GiB
