"""What a trial of the GPUs says is judged: bits before speed, links, NCCL, and a trial that does not end.

Speeds are those of two H200 that were tried so, quiet and with another process on one of them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from nsadiag.agent.captures.gpu import gpus
from nsadiag.agent.checkup.accelerators import judged, try_gpus

QUIET_S, SHARED_S = 1.60e-3, 4.15e-3  # of a product of 8192²: 687 and 265 TFLOP/s


def trial(*seconds: float, **changed: Any) -> dict[str, dict[str, Any]]:
    """The stages of a trial of as many GPUs."""
    count = len(seconds)
    one = {"size": 8192, "products": 1672, "differ": 0, "bits": 7}
    pairs = [
        {"from": a, "to": b, "bytes_per_s": 380e9, "wrong": 0}
        for a in range(count) for b in range(count) if a != b
    ]  # fmt: skip
    return {
        "devices": {"names": ["NVIDIA H200"] * count, "uuids": [f"of-{n}" for n in range(count)]},
        "products": {"gpus": [{**one, "seconds": each} for each in seconds]},
        "pairs": {"pairs": pairs},
        "together": {"nccl": "2.28.9", "bytes_per_s": 258e9, "wrong": [0] * count},
        **changed,
    }


def statuses(told: dict[str, dict[str, Any]], ending: str = "") -> dict[str, str]:
    return {check.name: check.status for check in judged(told, ending, {})}


def test_gpus_that_differ_by_their_power_are_sound() -> None:
    assert set(statuses(trial(1.62e-3, 1.58e-3)).values()) == {"works"}


def test_a_shared_gpu_is_named_with_who_shares_it() -> None:
    slow = judged(trial(1.36e-3, SHARED_S), "", {"of-1": [4711]})[1]
    assert slow.status == "limited" and "3.1 times as long as on GPU 0" in slow.detail
    assert slow.remedy == "1 other process on it: pid 4711"


def test_a_gpu_that_contradicts_itself_computes_wrong_values() -> None:
    told = trial(QUIET_S, QUIET_S)
    told["products"]["gpus"][1]["differ"] = 3
    bad = judged(told, "", {})[1]
    assert bad.stands_in_the_way and "3 of them differ in bits from its first" in bad.detail


def test_of_three_the_one_with_other_bits_is_wrong_and_of_two_either() -> None:
    three, two = trial(QUIET_S, QUIET_S, QUIET_S), trial(QUIET_S, QUIET_S)
    for told in (three, two):
        told["products"]["gpus"][1]["bits"] = 8
    assert [statuses(three)[f"GPU {gpu}"] for gpu in range(3)] == ["works", "missing", "works"]
    assert {statuses(two)[f"GPU {gpu}"] for gpu in range(2)} == {"limited"}


def test_a_slow_link_is_one_of_few_and_other_bytes_stand_in_the_way() -> None:
    slow, wrong = trial(QUIET_S, QUIET_S, QUIET_S), trial(QUIET_S, QUIET_S)
    slow["pairs"]["pairs"][0]["bytes_per_s"] = 24e9
    wrong["pairs"]["pairs"][0]["wrong"] = 1
    assert statuses(slow)["GPU links"] == "limited" and statuses(wrong)["GPU links"] == "missing"


def test_wrong_sums_and_a_trial_that_does_not_end_stand_in_the_way() -> None:
    wrong = trial(QUIET_S, QUIET_S, together={"nccl": "2.28.9", "bytes_per_s": 1.0, "wrong": [0, 5]})
    assert statuses(wrong)["NCCL"] == "missing"
    stuck = trial(QUIET_S, QUIET_S)
    del stuck["together"]
    said = {check.name: check for check in judged(stuck, "no word for 63 s", {})}["NCCL"]
    assert said.stands_in_the_way and "did not end: no word for 63 s" in said.detail


def test_a_gpu_without_room_is_not_tried() -> None:
    told = trial(QUIET_S, QUIET_S)
    told["products"]["gpus"][1] = {"error": "12 MiB are free"}
    full = judged(told, "", {"of-1": [4711]})[1]
    assert full.status == "limited" and "12 MiB are free" in full.detail and "4711" in full.remedy


def test_a_python_without_torch_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "is_there", lambda: True)
    monkeypatch.setattr(gpus, "state", lambda: ({"devices": []}, "pynvml"))
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o700)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (check,) = try_gpus(os.fspath(bare), 1)
    assert check.stands_in_the_way and "torch" in check.detail
