"""What counts as a race of two ranks for one checkpoint file, by recordings written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import Declined
from nsadiag.analysis.rules.exits.checkpoint_write_race import checkpoint_write_race
from nsadiag.analysis.rules.rule import Draft
from nsadiag.evidence.layout import write_json
from nsadiag.evidence.ring.blackbox import BlackBox, Kind, Phase

SAVED = "torch.save /job/last.pt"
BOTH = (f"0+{SAVED}", f"1+{SAVED}", f"0-{SAVED}", f"1-{SAVED}")
IN_TURN = (f"0+{SAVED}", f"0-{SAVED}", f"1+{SAVED}", f"1-{SAVED}")


def said(
    folder: Path, events: tuple[str, ...], hosts: tuple[str, str] = ("a", "a")
) -> list[Draft | Declined]:
    """What the rule says where two ranks began (`0+`) and ended (`0-`) these calls, in this order."""
    boxes = []
    for rank, host in enumerate(hosts):
        own = folder / "ranks" / f"{rank:05d}"
        own.mkdir(parents=True)
        write_json(own / "meta.json", {"rank": rank, "world_size": 2, "host": host})
        boxes.append(BlackBox(own / "blackbox.bin", rank=rank, world_size=2))
    write_json(folder / "run.json", {"kind": "run", "world_size": 2})
    for event in events:
        box, phase = boxes[int(event[0])], Phase.BEGIN if event[1] == "+" else Phase.END
        box.emit(Kind.IO, phase, box.names(event[2:]), 0, 0, box.names("\t/job/train.py:7:save"))
    return list(checkpoint_write_race(Case(load_cell(folder))))


def test_writes_of_one_file_that_overlap_are_a_race(tmp_path: Path) -> None:
    first = said(tmp_path, BOTH)[0]
    assert isinstance(first, Draft)
    assert first.guilty_ranks == (0, 1) and first.outcome == "wrong"
    assert first.at is not None and (first.at.file, first.at.line) == ("/job/train.py", 7)
    assert set(first.evidence.values()) == {"ranks/00000/blackbox.bin", "ranks/00001/blackbox.bin"}


def test_writes_of_one_file_in_turn_are_none(tmp_path: Path) -> None:
    first, *_ = found = said(tmp_path, IN_TURN)
    assert not [each for each in found if isinstance(each, Draft)]
    assert first == Declined("ranks 0, 1 wrote /job/last.pt one after another", "ranks/00000/blackbox.bin")


@pytest.mark.parametrize("path", ["last.pt", "/dev/null", "<BytesIO>", "/job/***.pt"])
def test_what_may_be_another_file_on_each_rank_is_none(path: str, tmp_path: Path) -> None:
    events = tuple(event.replace("/job/last.pt", path) for event in BOTH)
    assert said(tmp_path, events) == []


def test_one_path_on_two_hosts_is_no_race(tmp_path: Path) -> None:
    (only,) = said(tmp_path, BOTH, hosts=("a", "b"))
    assert isinstance(only, Declined) and "none from two ranks of one host" in only.fact


def test_a_rank_that_reads_while_another_writes_is_none(tmp_path: Path) -> None:
    load = "torch.load /job/last.pt"
    (only,) = said(tmp_path, (f"0+{SAVED}", f"1+{load}", f"0-{SAVED}", f"1-{load}"))
    assert only == Declined(
        "rank 0 wrote 1 checkpoint file, none from two ranks of one host", "ranks/00000/blackbox.bin"
    )
