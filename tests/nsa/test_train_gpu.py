"""Training on a GPU: recorded and compiled steps learn what plain ones do."""

import csv
import itertools

import pytest
import torch

from nsa.config import ConfigError
from nsa.generate import main as generate
from nsa.options import load_train_config
from nsa.train import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs a GPU: `pytest -m gpu` on such a machine"
    ),
]
OPTIONS = ["train.steps=8", "train.precision=bf16", "data.seq_len=2048", "model.dim=256", "model.head_dim=64"]


def losses(*overrides):
    return train(load_train_config("tiny", [*OPTIONS, *overrides]))


@pytest.mark.parametrize("attention", ["nsa", pytest.param("dense", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["train.accumulate=2", "parallel.activation_checkpointing=full", "optimizer.warmup_steps=4"],
        pytest.param(["train.compile=true"], marks=pytest.mark.slow),
    ],
    ids=["plain", "accumulated_and_recomputed", "compiled"],
)
def test_recorded_steps_learn_what_plain_ones_do(attention, overrides):
    control = losses(f"model.attention={attention}", *overrides)
    recorded = losses(f"model.attention={attention}", "train.cuda_graph=true", *overrides)
    # The same kernels on the same numbers: the learning rate alone is a tensor in one and a number in the other.
    assert recorded == pytest.approx(control, abs=1e-4)


@pytest.mark.slow  # the switches below compile too
def test_compiled_steps_learn_what_plain_ones_do():
    assert losses("train.compile=true") == pytest.approx(losses(), abs=2e-2)


def test_steps_that_telemetry_watches_run_in_python_between_the_replays(tmp_path):
    recorded = losses("train.cuda_graph=true", f"telemetry.dir={tmp_path}", "telemetry.every=6")
    assert recorded == pytest.approx(losses(), abs=1e-4)
    with (tmp_path / "gate_stats.csv").open() as file:
        assert {row["step"] for row in csv.DictReader(file)} == {"1", "6"}


@pytest.mark.parametrize("resumed_as", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_a_run_resumes_with_its_learning_rate(tmp_path, resumed_as):
    halves = [f"checkpoint.dir={tmp_path}", "checkpoint.every=4"]
    whole = losses(*halves, "train.cuda_graph=true")
    (tmp_path / "step_8").rename(tmp_path / "later")
    resumed = losses(*halves, f"train.cuda_graph={resumed_as}", "checkpoint.resume=true")
    assert resumed == pytest.approx(whole[4:], abs=1e-4)


def test_a_step_graph_across_ranks_is_refused():
    with pytest.raises(ConfigError, match="cuda_graph is true with parallel"):
        losses("train.cuda_graph=true", "parallel.mode=ddp")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    directory = tmp_path_factory.mktemp("texts")
    for i in range(12):
        (directory / f"{i:02}.txt").write_text(f"The {i} of {i * i} is {i + 1}. " * (40 + 97 * i))
    return directory


# One that crashed a device, and every other one.
SWITCHES = [
    pytest.param(*switches, id="-".join(switches), marks=[] if switches == CRASHED else pytest.mark.slow)
    for CRASHED in [("compiled", "separate", "none")]
    for switches in itertools.product(
        ("compiled", "eager"), ("separate", "joined"), ("none", "selective", "full")
    )
]


@pytest.mark.parametrize(("how", "documents", "recomputed"), SWITCHES)
def test_statistics_of_telemetry_change_no_step(how, documents, recomputed, texts, tmp_path):
    overrides = [
        "data.source=text", f"data.path={texts}", f"data.documents={documents}", "data.batch_size=2",
        f"train.compile={how == 'compiled'}", f"parallel.activation_checkpointing={recomputed}", "train.eval_every=4",
    ]  # fmt: skip
    watched = losses(*overrides, f"telemetry.dir={tmp_path}", "telemetry.every=3")
    assert watched == pytest.approx(losses(*overrides), abs=1e-6 if how == "eager" else 2e-2)
    with (tmp_path / "k_stats.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["step"] for row in rows} == {"1", "3", "6"}
    assert all(0 < float(row["mean"]) <= float(row["max"]) <= 32 for row in rows)  # 4 blocks of 8 keys


def test_a_model_that_is_made_in_shards_begins_and_learns_as_a_whole_one():
    options = ["train.precision=fp32", "attention.backend=torch", "train.steps=3"]
    assert losses("parallel.mode=fsdp2", *options) == pytest.approx(losses(*options), abs=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_checkpoint_is_continued_as_text_on_a_gpu(precision, texts, tmp_path, capsys):
    options = ["data.source=text", f"data.path={texts}", f"train.precision={precision}", "train.steps=3"]
    losses(*options, f"checkpoint.dir={tmp_path}")
    capsys.readouterr()
    said = []
    for _ in range(2):
        assert generate([str(tmp_path), "The 3 of", "--tokens", "40", "--device", "cuda"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] and said[0].endswith("\n")
