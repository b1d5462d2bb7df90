"""Telemetry: speaks while the main thread cannot, counts right, and is silent when switched off."""

import csv
import json
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from support.jobs import wait_until

from nsa.config import ConfigError
from nsa.layers.sparse import NSAAttention
from nsa.model import NSAModel
from nsa.options import load_train_config
from nsa.train import train
from nsa.training.environment import guard_environment, shown_environment
from nsa.training.statistics import gate_statistics, selection_statistics
from nsa.training.telemetry import (
    StepRecord,
    Telemetry,
    _Files,
)

CPU = torch.device("cpu")


def beats(directory, rank=0):
    return [json.loads(line) for line in (directory / f"heartbeat_rank{rank}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    directory = tmp_path_factory.mktemp("telemetry")
    overrides = [
        f"telemetry.dir={directory}", "telemetry.every=2", "telemetry.memory_steps=3", "telemetry.memory_every=4",
    ]  # fmt: skip
    train(load_train_config("tiny", [*overrides, "train.steps=4"]))
    return directory


def test_the_heartbeat_goes_on_while_the_main_thread_is_inside_a_long_backward(tmp_path):
    config = load_train_config("tiny", [f"telemetry.dir={tmp_path}", "telemetry.heartbeat_s=0.05"])
    telemetry = Telemetry(config, torch.nn.Linear(1, 1), rank=0, device=CPU)
    x = torch.randn(512, 512, requires_grad=True)
    y = x
    for _ in range(60):
        y = torch.tanh(y @ x)
    telemetry.phase("backward", step=7)
    y.sum().backward()  # one call into C++, several tenths of a second long
    telemetry.phase("optimizer")
    telemetry.close()
    inside = [beat["phase_s"] for beat in beats(tmp_path) if (beat["phase"], beat["step"]) == ("backward", 7)]
    assert len(inside) >= 3
    assert inside == sorted(inside)


def test_every_csv_begins_with_a_header(recorded):
    tables = sorted(recorded.glob("*.csv"))
    assert {table.stem for table in tables} == {"k_stats", "gate_stats", "fallback_counters"}
    for table in tables:
        header, *rows = list(csv.reader(table.open()))
        assert header[0] == "step"
        assert rows
        assert all(len(row) == len(header) for row in rows)


def test_a_heartbeat_tells_each_step_s_loss_speed_fetch_time_and_memory(recorded):
    steps = [beat for beat in beats(recorded) if beat["event"] == "step"]
    assert [beat["done"] for beat in steps] == [1, 2, 3, 4]
    for beat in steps:
        assert beat["loss"] > 0
        assert beat["gradient_norm"] > 0
        assert beat["tokens_per_s"] > 0
        assert beat["fetch_s"] >= 0
        assert beat["memory"]["rss_mib"] > 10
    assert ["gate_stats" in beat for beat in steps] == [True, True, False, True]
    assert all((beat["mode"], beat["preset"]) == ("single", "none") for beat in beats(recorded))


def test_environment_memory_and_data_types_are_reported(recorded):
    environment = json.loads((recorded / "env.json").read_text())
    assert environment["versions"]["torch"] == torch.__version__
    assert environment["config"]["model"]["layers"] == 2
    assert environment["attention"] == "nsa (torch)"
    assert {file.name for file in recorded.glob("mem_*.json")} == {
        "mem_boot.json",
        "mem_step3.json",
        "mem_step4.json",
    }
    assert (
        "blocks.1.mlp.fc2.weight\tfloat32\tfloat32\tfloat32" in (recorded / "dtypes_report.txt").read_text()
    )


def test_without_a_directory_there_is_no_thread_and_no_file():
    before, files = threading.active_count(), list(Path().iterdir())
    config = load_train_config("tiny")
    telemetry = Telemetry(config, NSAModel(config.model, config.attention), rank=0, device=CPU)
    telemetry.close()
    assert list(Path().iterdir()) == files
    assert threading.active_count() == before


def test_statistics_are_collected_only_on_their_steps(tmp_path):
    config = load_train_config("tiny", [f"telemetry.dir={tmp_path}", "telemetry.every=5"])
    model = NSAModel(config.model, config.attention)
    telemetry = Telemetry(config, model, rank=1, device=CPU)
    collecting = []
    for step in range(1, 6):
        with telemetry.statistics(step):
            collecting.append([m.collect_stats for m in model.modules() if isinstance(m, NSAAttention)])
    telemetry.close()
    assert collecting == [[True] * 2, [False] * 2, [False] * 2, [False] * 2, [True] * 2]
    assert (tmp_path / "k_stats_rank1.csv").exists()


def test_recording_a_step_costs_little(tmp_path):
    config = load_train_config("tiny", [f"telemetry.dir={tmp_path}", "telemetry.every=1000"])
    telemetry = Telemetry(config, torch.nn.Linear(1, 1), rank=0, device=CPU)
    one = torch.ones(())
    durations = []
    for step in range(2, 52):
        started = time.perf_counter()
        for phase in ("data", "forward", "backward", "optimizer"):
            telemetry.phase(phase, step)
        telemetry.step(StepRecord(step=step, loss=one, gradient_norm=one, tokens=1, seconds=1.0, fetch_s=0.0))
        durations.append(time.perf_counter() - started)
    telemetry.close()
    assert sorted(durations)[len(durations) // 2] < 1e-3


def test_gate_statistics_of_even_and_of_collapsed_gates():
    even = gate_statistics(torch.full((1, 4, 2, 3), 0.5)).tolist()
    assert even == pytest.approx([torch.tensor(3.0).log().item(), 0.5, 1 / 3, 1 / 3, 1 / 3, 0.0])
    collapsed = gate_statistics(torch.tensor([[0.9, 0.0, 0.0]])).tolist()
    assert collapsed == pytest.approx([0.0, 0.9, 1.0, 0.0, 0.0, 1.0])


def test_selection_statistics_count_the_rows_at_the_maximum():
    assert selection_statistics(torch.tensor([[[1, 5, 5, 3]]])).tolist() == [3.5, 5.0, 2.0, 4.0]


def test_secrets_are_masked_and_bystanders_left_out():
    shown = shown_environment(
        {"HF_TOKEN": "hf_x", "NCCL_DEBUG": "INFO", "HF_ENDPOINT": "https://me:pw@hub", "MAIL": "me@home"}
    )
    assert shown == {"HF_TOKEN": "***", "NCCL_DEBUG": "INFO", "HF_ENDPOINT": "https://***@hub"}


def test_the_environment_guard_names_what_slows_or_hides():
    assert guard_environment({"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO"}) == []
    warnings = guard_environment({"NCCL_P2P_DISABLE": "1", "TORCH_DISTRIBUTED_DEBUG": "detail"})
    assert [warning.split("=")[0] for warning in warnings] == ["NCCL_P2P_DISABLE", "TORCH_DISTRIBUTED_DEBUG"]


def test_a_disk_that_fills_up_silences_telemetry_but_not_training(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    plain = train(load_train_config("tiny"))
    monkeypatch.setattr(_Files, "append", full)
    for name in ("k_stats", "gate_stats", "fallback_counters"):
        (tmp_path / f"{name}.csv").touch()
    assert train(load_train_config("tiny", [f"telemetry.dir={tmp_path}"])) == plain
    assert "telemetry of rank 0 has stopped" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["telemetry.dir", "checkpoint.dir"])
def test_a_directory_that_cannot_be_made_is_refused_by_name(tmp_path, key):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=key):
        train(load_train_config("tiny", [f"{key}={tmp_path / 'file' / 'below'}"]))


def test_trackers_get_the_numbers_of_each_step(tmp_path, monkeypatch):
    tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    options = [
        f"telemetry.dir={tmp_path}",
        "telemetry.tensorboard=true",
        "telemetry.wandb=nsa",
        "train.eval_every=2",
    ]
    losses = train(load_train_config("tiny", [*options, "telemetry.every=2"]))

    events = tensorboard.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [point.value for point in events.Scalars("loss")] == pytest.approx(losses)
    assert [point.step for point in events.Scalars("gate_stats/entropy")] == [1, 2]

    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    # Its service is a process of its own, which may write a moment after `finish` has returned.
    wait_until(lambda: file.read_bytes().count(b"tokens_per_s") >= 3, "three steps in W&B's file")
    written = file.read_bytes()
    assert b"gate_stats/entropy" in written and b"eval_loss" in written


def test_a_tracker_that_is_not_installed_is_refused_with_the_command_to_install_it(tmp_path, monkeypatch):
    for name in ("wandb", "tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
        value = "true" if name == "tensorboard" else "project"
        with pytest.raises(ConfigError) as caught:
            train(load_train_config("tiny", [f"telemetry.dir={tmp_path}", f"telemetry.{name}={value}"]))
        assert caught.value.hint == f"pip install {name}"
