"""A pickle is read as data: nothing in it is ever run, and whatever is wrong with it is one error."""

import contextlib
import json
import pickle
import pickletools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsadiag.analysis.load import load_cell
from nsadiag.evidence.pickles import MAX_DEPTH, PickleRefused, loads, read_pickle

# What a gloo rank dumps, by torch's own C++ writer.
DUMP = """
import os, sys
os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
sys.stdout.buffer.write(_dump_fr_trace())
sys.stdout.flush()
os._exit(0)
"""


class Runs:
    """Its pickle says: call this."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def refused(data: bytes) -> str:
    with pytest.raises(PickleRefused) as error:
        loads(data)
    return str(error.value)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(PLAIN, st.sampled_from(range(pickle.HIGHEST_PROTOCOL + 1)))
def test_plain_values_come_back_as_they_went_in(value: Any, protocol: int) -> None:
    assert loads(pickle.dumps(value, protocol)) == value


def test_what_torch_writes_is_read_with_its_frames() -> None:
    done = subprocess.run([sys.executable, "-c", DUMP], capture_output=True, check=True)
    dump = loads(done.stdout)
    assert dump == pickle.loads(done.stdout)
    assert [entry["profiling_name"] for entry in dump["entries"]] == ["gloo:all_reduce"]
    assert "all_reduce" in [frame["name"] for frame in dump["entries"][0]["frames"]]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_create_a_file_creates_none(tmp_path: Path, protocol: int) -> None:
    planted = tmp_path / "planted"
    data = pickle.dumps({"entries": [Runs(Path.touch, planted)]}, protocol)
    assert "only plain values" in refused(data)
    assert not planted.exists()
    pickle.loads(data)
    assert planted.exists(), "the standard unpickler does run it"


@pytest.mark.parametrize(
    "value", [b"bytes", {1, 2}, frozenset(), bytearray(b"x"), 1j, range(3), print, Path, ...], ids=repr
)
def test_whatever_is_not_plain_is_refused(value: Any) -> None:
    refused(pickle.dumps([value]))


def test_names_persistent_ids_and_extensions_are_refused() -> None:
    for data in (
        b"cos\nsystem\n.",
        b"Pname\n.",
        b"\x82\x01.",
        b"(S'x'\nios\nsystem\n.",
        b"Nb.",
        b"(cos\nsystem\no.",
    ):
        assert "only plain values" in refused(data)


def test_a_value_that_contains_itself_is_refused() -> None:
    itself: list[Any] = []
    itself.append(itself)
    assert "contains itself" in refused(pickle.dumps(itself))


def test_depth_is_bounded_and_shared_parts_are_not_walked_again() -> None:
    deep: list[Any] = []
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert "deep" in refused(pickle.dumps(deep))
    shared: Any = ["x"]
    for _ in range(MAX_DEPTH - 2):
        shared = [shared, shared]  # 2 to the power of 62 leaves, if one follows every path
    assert loads(pickle.dumps(shared))[0] is not None


def test_absurd_sizes_cost_nothing() -> None:
    # A memo slot of four thousand million, a string of 2**62 bytes, a frame of as many.
    for data in (
        b"Nr\xff\xff\xff\xff.",
        b"\x8d" + b"\xff" * 7 + b"\x3fx.",
        b"\x95" + b"\xff" * 7 + b"\x3fN.",
    ):
        try:
            assert loads(data) is None
        except PickleRefused:
            continue


@given(st.binary(max_size=300))
@settings(max_examples=500)
def test_garbage_raises_nothing_but_its_own_error(data: bytes) -> None:
    try:
        json.dumps(loads(data), default=str)
    except PickleRefused:
        pass
    except TypeError as error:  # a dict may have keys that JSON has not
        assert "keys must be" in str(error)


OPCODES = [code.code.encode("latin-1") for code in pickletools.opcodes]


@given(st.lists(st.sampled_from(OPCODES) | st.binary(max_size=4), max_size=60))
@settings(max_examples=500)
def test_programs_of_real_instructions_raise_nothing_but_its_own_error(parts: list[bytes]) -> None:
    with contextlib.suppress(PickleRefused):
        loads(b"".join(parts) + b".")


@given(st.data())
def test_a_damaged_dump_raises_nothing_but_its_own_error(data: st.DataObject) -> None:
    whole = bytearray(
        pickle.dumps({"version": "2.10", "entries": [{"state": "scheduled", "sizes": [[3]]}]}, 2)
    )
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(PickleRefused):
        loads(bytes(whole[: data.draw(st.integers(0, len(whole)))]))


def test_analysis_reads_the_pickle_where_the_json_is_missing(tmp_path: Path) -> None:
    capture = tmp_path / "ranks/00000/captures/01"
    capture.mkdir(parents=True)
    entry = {
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 1,
        "profiling_name": "gloo:all_reduce",
    }
    (capture / "fr.pickle").write_bytes(pickle.dumps({"entries": [entry, {"state": "started"}]}, 2))
    entries = load_cell(tmp_path).rank(0).captures[0].flight_recorder["entries"]
    assert entries == [entry | {"process_group": ["0", "default_pg"]}]
    (capture / "fr.json").write_text('{"entries": []}')
    assert load_cell(tmp_path).rank(0).captures[0].flight_recorder["entries"] == []


def test_a_pickle_that_is_refused_is_a_gap(tmp_path: Path) -> None:
    capture = tmp_path / "ranks/00000/captures/01"
    capture.mkdir(parents=True)
    planted = tmp_path / "planted"
    (capture / "fr.pickle").write_bytes(pickle.dumps(Runs(Path.touch, planted)))
    rank = load_cell(tmp_path).rank(0)
    assert rank.captures[0].flight_recorder == {} and not planted.exists()
    assert [gap for gap in rank.gaps if "fr.pickle" in gap and "only plain values" in gap]


def test_a_file_of_absurd_size_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "fr.pickle"
    with path.open("wb") as file:
        file.truncate(2**33)
    with pytest.raises(PickleRefused, match="larger than"):
        read_pickle(path)
