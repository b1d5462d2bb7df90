"""Checkpoints: whole or absent, and resumed bit for bit."""

import shutil

import pytest
import torch
from launching import run_cells
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from nsa.checkpoint import newest_checkpoint
from nsa.config import ConfigError
from nsa.options import load_train_config
from nsa.train import train

MODES = ("ddp", "fsdp1", "fsdp2")


def contents(checkpoint, directory):
    """Model and optimizer of a checkpoint, by dotted name."""
    flat_file = directory / "flat.pt"
    dcp_to_torch_save(checkpoint, flat_file)
    return dict(flatten(torch.load(flat_file, weights_only=False)))


def flatten(values, prefix=""):
    if isinstance(values, dict):
        for name, value in values.items():
            yield from flatten(value, f"{prefix}{name}/")
    else:
        yield prefix, values


def assert_bitwise_equal(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]) if torch.is_tensor(value) else value == other[name], name


def test_six_steps_are_three_and_three_resumed_bit_for_bit(tmp_path):
    overrides = ["train.steps=6", "checkpoint.every=3", "data.batch_size=2"]
    straight = train(load_train_config("tiny", [*overrides, f"checkpoint.dir={tmp_path / 'straight'}"]))
    shutil.copytree(tmp_path / "straight/step_3", tmp_path / "resumed/step_3")
    resumed = [*overrides, f"checkpoint.dir={tmp_path / 'resumed'}", "checkpoint.resume=true"]
    assert train(load_train_config("tiny", resumed)) == straight[3:]
    assert_bitwise_equal(
        contents(tmp_path / "straight/step_6", tmp_path), contents(tmp_path / "resumed/step_6", tmp_path)
    )


@pytest.fixture(scope="module")
def distributed(tmp_path_factory):
    """Runs of each mode: six steps straight, and three and three resumed."""
    directory = tmp_path_factory.mktemp("checkpoints")
    cells = {}
    for mode in MODES:
        # A constant learning rate, as a run of three steps must begin like one of six.
        common = [f"parallel.mode={mode}", "optimizer.min_lr_ratio=1"]
        there = [*common, "train.steps=6", f"checkpoint.dir={directory}/{mode}_straight"]
        halfway = [*common, "train.steps=3", f"checkpoint.dir={directory}/{mode}_resumed"]
        onward = [*common, "train.steps=6", f"checkpoint.dir={directory}/{mode}_resumed"]
        cells |= {f"{mode} straight": there, f"{mode} first half": halfway}
        cells[f"{mode} second half"] = [*onward, "checkpoint.resume=true"]
    return directory, run_cells(directory, cells)


@pytest.mark.parametrize("mode", MODES)
def test_two_ranks_resume_bit_for_bit(distributed, mode, tmp_path):
    directory, losses = distributed
    assert losses[f"{mode} first half"] + losses[f"{mode} second half"] == losses[f"{mode} straight"]
    straight, resumed = (
        contents(directory / f"{mode}_{kind}/step_6", tmp_path) for kind in ("straight", "resumed")
    )
    assert_bitwise_equal(straight, resumed)


def test_a_checkpoint_of_other_ranks_is_refused(distributed):
    directory, _ = distributed
    overrides = [f"checkpoint.dir={directory}/ddp_straight", "checkpoint.resume=true", "train.steps=7"]
    with pytest.raises(ConfigError, match="written by 2 ranks, and here are 1"):
        train(load_train_config("tiny", overrides))


def test_an_unfinished_checkpoint_is_not_resumed_from(tmp_path):
    for name in ("step_9", "step_10", ".step_11.unfinished"):
        (tmp_path / name).mkdir()
    assert newest_checkpoint(tmp_path) == tmp_path / "step_10"
    assert newest_checkpoint(tmp_path / "nowhere") is None


def test_a_saved_checkpoint_leaves_nothing_unfinished(tmp_path):
    train(load_train_config("tiny", ["train.steps=1", f"checkpoint.dir={tmp_path}"]))
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]
