"""Checkpoints: whole or absent, and resumed bit for bit."""

import shutil
import time

import pytest
import torch
from launching import run_cells
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from nsa.config import ConfigError, DataConfig
from nsa.options import load_train_config
from nsa.train import train
from nsa.training.checkpoint import CheckpointWriter, Progress, load_checkpoint, newest_checkpoint
from nsa.training.data import open_stream
from nsa.training.fineweb import FinewebStream

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
def distributed(tmp_path_factory, warm_python):
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
        cells[f"{mode} after one rank"] = [
            *common, "train.steps=6", f"checkpoint.dir={directory}/{mode}_grown", "checkpoint.resume=true",
        ]  # fmt: skip
    for mode in ("ddp", "fsdp2"):
        cells[f"{mode} background"] = [
            f"parallel.mode={mode}", "optimizer.min_lr_ratio=1", "train.steps=6", "checkpoint.every=2",
            f"checkpoint.dir={directory}/{mode}_background", "checkpoint.background=true", "checkpoint.keep=2",
        ]  # fmt: skip
    alone(3, directory / "alone")
    for mode in MODES:
        shutil.copytree(directory / "alone", directory / f"{mode}_grown")
    return directory, run_cells(warm_python, directory, cells)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The losses of nine steps on one rank."""
    return alone(9, tmp_path_factory.mktemp("straight"))


def alone(steps, directory, *overrides):
    """One rank with the batch of two."""
    return train(
        load_train_config(
            "tiny",
            [
                "data.batch_size=2", "optimizer.min_lr_ratio=1", f"train.steps={steps}",
                f"checkpoint.dir={directory}", *overrides,
            ],
        )
    )  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_two_ranks_resume_bit_for_bit(distributed, mode, tmp_path):
    directory, losses = distributed
    assert losses[f"{mode} first half"] + losses[f"{mode} second half"] == losses[f"{mode} straight"]
    straight, resumed = (
        contents(directory / f"{mode}_{kind}/step_6", tmp_path) for kind in ("straight", "resumed")
    )
    assert_bitwise_equal(straight, resumed)


@pytest.mark.parametrize("mode", MODES)
def test_one_rank_goes_on_where_two_stopped_and_two_where_one_did(distributed, straight, mode):
    directory, losses = distributed
    shutil.copytree(directory / f"{mode}_straight/step_6", directory / f"{mode}_shrunk/step_6")
    shrunk = alone(9, directory / f"{mode}_shrunk", "checkpoint.resume=true")
    assert shrunk == pytest.approx(straight[6:], abs=1e-5)
    assert losses[f"{mode} after one rank"] == pytest.approx(straight[3:6], abs=1e-5)


def test_shards_that_cannot_be_copied_are_not_written_in_the_background(tmp_path):
    overrides = ["parallel.mode=fsdp1", "checkpoint.background=true", f"checkpoint.dir={tmp_path}"]
    with pytest.raises(ConfigError, match="whose shards torch cannot copy; choose fsdp2"):
        train(load_train_config("tiny", overrides))


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_written_in_the_background_they_are_the_same_and_the_newest_two_are_kept(distributed, mode, tmp_path):
    directory, losses = distributed
    assert losses[f"{mode} background"] == losses[f"{mode} straight"]
    kept = sorted(path.name for path in (directory / f"{mode}_background").iterdir())
    assert kept == ["step_4", "step_6"]
    straight, background = (
        contents(directory / f"{mode}_{kind}/step_6", tmp_path) for kind in ("straight", "background")
    )
    assert_bitwise_equal(straight, background)


def test_ranks_that_read_documents_of_their_own_cannot_become_fewer(distributed):
    directory, _ = distributed
    stream = FinewebStream(DataConfig(source="fineweb"), rank=0, world_size=1)
    progress = Progress(model=torch.nn.Linear(1, 1), optimizer=None, stream=stream)
    with pytest.raises(ConfigError, match="written by 2 ranks, here are 1, and each rank has read documents"):
        load_checkpoint(progress, directory / "ddp_straight/step_6")
    with pytest.raises(ConfigError, match=r"holds no rank_0\.pt"):
        load_checkpoint(progress, directory)


@pytest.mark.parametrize("background", ["true", "false"])
def test_one_rank_keeps_the_newest_and_writes_in_the_background_too(tmp_path, background):
    losses = alone(
        4, tmp_path, "checkpoint.every=1", "checkpoint.keep=1", f"checkpoint.background={background}"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["step_4"]
    assert losses[:4] == alone(4, tmp_path / "again")


def test_a_background_checkpoint_has_its_name_when_it_is_whole_and_not_at_the_next_save(tmp_path):
    model = torch.nn.Linear(2, 2)
    progress = Progress(
        model=model, optimizer=torch.optim.AdamW(model.parameters()), stream=open_stream(DataConfig()), step=3
    )
    writer = CheckpointWriter(tmp_path, background=True)
    target = writer.save(progress)
    deadline = time.monotonic() + 60
    while not target.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert newest_checkpoint(tmp_path) == target
    assert (target / ".metadata").exists() and (target / "rank_0.pt").exists()
    writer.close()


def test_an_unfinished_checkpoint_is_not_resumed_from(tmp_path):
    for name in ("step_9", "step_10", ".step_11.unfinished"):
        (tmp_path / name).mkdir()
    assert newest_checkpoint(tmp_path) == tmp_path / "step_10"
    assert newest_checkpoint(tmp_path / "nowhere") is None


def test_a_saved_checkpoint_leaves_nothing_unfinished(tmp_path):
    train(load_train_config("tiny", ["train.steps=1", f"checkpoint.dir={tmp_path}"]))
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]
