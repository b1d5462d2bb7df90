"""Parallel modes and activation checkpointing: equal to plain training, except for the specimen."""

import functools
import json
import os

import pytest
import torch
from launching import ROOT, TWO_RANKS, run_cells, run_python

from nsa.config import ConfigError, DDPConfig
from nsa.model import NSAModel
from nsa.options import load_train_config
from nsa.parallel import apply_parallel, plain_name, process_group
from nsa.train import train
from nsa.training.recomputation import apply_activation_checkpointing

MODES = ("ddp", "fsdp1", "fsdp2")
CHECKPOINTING = {
    "none": [],
    "reentrant": ["parallel.activation_checkpointing=full", "parallel.reentrant=true"],
    "non-reentrant": ["parallel.activation_checkpointing=full"],
    "selective": ["parallel.activation_checkpointing=selective"],
}
CELLS = {
    f"{mode} {checkpointing}": [f"parallel.mode={mode}", "train.steps=2", "model.layers=3", *overrides]
    for mode in MODES
    for checkpointing, overrides in CHECKPOINTING.items()
}


CONTEXT = {
    f"{mode} {layout} {attention}": [
        f"parallel.mode={mode}", "train.steps=2", "model.layers=3", "parallel.context.ranks=2",
        f"parallel.context.layout={layout}", f"model.attention={attention}",
    ]
    for mode, layout, attention in [
        ("ddp", "contiguous", "nsa"), ("ddp", "zigzag", "nsa"), ("ddp", "zigzag", "dense"),
        ("fsdp2", "zigzag", "nsa"), ("fsdp1", "contiguous", "nsa"),
    ]
}  # fmt: skip
CONTEXT["ddp recomputed"] = [*CONTEXT["ddp zigzag nsa"], *CHECKPOINTING["non-reentrant"]]


def of_documents(directory):
    """Overrides for text of documents shorter and longer than a row, so that batches count unlike targets."""
    words = ["hung " * n for n in (1, 30, 2, 9, 4, 60, 3, 17, 1, 1, 25, 8)]
    for number, text in enumerate(words):
        (directory / f"{number:02}.txt").write_text(text)
    return ["data.source=text", f"data.path={directory}", "train.steps=2", "model.layers=3"]


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    return of_documents(tmp_path_factory.mktemp("documents"))


@pytest.fixture(scope="module")
def losses(tmp_path_factory, warm_python, documents):
    accumulated = {
        f"{mode} accumulated": [
            f"parallel.mode={mode}",
            "train.steps=2",
            "model.layers=3",
            "train.accumulate=2",
        ]
        for mode in MODES
    }
    apart = {
        f"{mode} documents": [*documents, f"parallel.mode={mode}", "train.accumulate=2", *CHECKPOINTING[kind]]
        for mode, kind in (("ddp", "none"), ("fsdp1", "none"), ("fsdp2", "reentrant"))
    }
    shared = {
        f"{mode} {attention} shared documents": [
            *documents, f"parallel.mode={mode}", "parallel.context.ranks=2", "parallel.context.layout=zigzag",
            f"model.attention={attention}", "train.accumulate=2",
        ]
        for mode, attention in (("ddp", "nsa"), ("fsdp2", "dense"))
    }  # fmt: skip
    cells = CELLS | CONTEXT | accumulated | apart | shared
    return run_cells(warm_python, tmp_path_factory.mktemp("cells"), cells)


def single(*overrides):
    return train(load_train_config("tiny", ["train.steps=2", "model.layers=3", *overrides]))


of_one_rank = functools.cache(single)  # what many cells are compared with


@pytest.mark.parametrize("cell", CELLS)
def test_two_ranks_train_as_one_does_on_the_same_batch(losses, cell):
    assert losses[cell] == pytest.approx(of_one_rank("data.batch_size=2"), abs=1e-5)


@pytest.mark.parametrize("cell", CONTEXT)
def test_two_ranks_that_share_each_sequence_train_as_one_does(losses, cell):
    attention = "dense" if "dense" in cell else "nsa"
    assert losses[cell] == pytest.approx(of_one_rank(f"model.attention={attention}"), abs=1e-5)


@pytest.mark.slow
def test_shared_sequences_give_the_outputs_and_gradients_of_whole_ones(tmp_path):
    result = tmp_path / "errors.json"
    done = run_python(*TWO_RANKS, str(ROOT / "tests/nsa/run_context.py"), str(result))
    assert result.exists(), done.stderr
    errors = json.loads(result.read_text())
    assert len(errors) == 30
    assert max(errors.values()) < 1e-10, errors


@pytest.mark.parametrize(("mode", "attention"), [("ddp", "nsa"), ("fsdp2", "dense")])
def test_two_ranks_that_share_rows_of_documents_train_as_one_does(losses, documents, mode, attention):
    alone = of_one_rank(*documents, "data.batch_size=2", f"model.attention={attention}")
    assert losses[f"{mode} {attention} shared documents"] == pytest.approx(alone, abs=1e-5)


def test_sequences_that_cannot_be_shared_are_refused():
    with pytest.raises(ConfigError, match=r"parallel.context.ranks is 2, which does not divide 1 ranks"):
        single("parallel.context.ranks=2")


@pytest.mark.parametrize("mode", MODES)
def test_accumulated_batches_train_as_one_big_batch_does(losses, mode):
    assert losses[f"{mode} accumulated"] == pytest.approx(of_one_rank("data.batch_size=4"), abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_documents_kept_apart_train_as_on_one_rank_though_batches_count_unlike_targets(
    losses, documents, mode
):
    alone = of_one_rank(*documents, "data.batch_size=4")
    assert losses[f"{mode} documents"] == pytest.approx(alone, abs=1e-5)
    joined = of_one_rank(*documents, "data.batch_size=4", "data.documents=joined")
    assert losses[f"{mode} documents"] != pytest.approx(joined, abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_a_distributed_mode_runs_alone_as_a_world_of_one(mode):
    assert single(f"parallel.mode={mode}") == pytest.approx(of_one_rank(), abs=1e-5)


@functools.cache
def gradients(mode, reentrant=False, binding="early"):
    """Of a 4-layer model on a fixed batch, by parameter."""
    torch.manual_seed(0)
    config = load_train_config("tiny", ["model.layers=4"])
    model = NSAModel(config.model, config.attention)
    apply_activation_checkpointing(model, mode, reentrant=reentrant, binding=binding)
    tokens = torch.randint(256, (1, 65))
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def relative_error(block, got, wanted):
    names = [name for name in wanted if name.startswith(f"blocks.{block}.")]
    difference = sum((got[name] - wanted[name]).square().sum() for name in names if got[name] is not None)
    return (difference / sum(wanted[name].square().sum() for name in names)).sqrt().item()


@pytest.mark.parametrize("mode", ["selective", "full"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_early_binding_gives_the_gradients_of_no_checkpointing_for_every_block(mode, reentrant):
    wanted = gradients("none")
    got = gradients(mode, reentrant)
    for name, gradient in wanted.items():
        assert torch.allclose(got[name], gradient, rtol=1e-5, atol=1e-7), name


def test_late_binding_silently_gives_wrong_gradients_to_every_block_but_the_last():
    wanted = gradients("none")
    got = gradients("full", binding="late")
    errors = [relative_error(block, got, wanted) for block in range(4)]
    assert all(error > 0.5 for error in errors[:3])
    assert errors[3] < 1e-5


def test_late_binding_with_reentrant_checkpointing_is_ddp_s_ready_twice():
    with pytest.raises(RuntimeError, match=r"blocks.2.mlp.fc2.weight has been marked as ready twice"):
        single("parallel.mode=ddp", *CHECKPOINTING["reentrant"], "parallel.binding=late")


def test_ddp_takes_each_safe_mode_switch():
    config = load_train_config("tiny", ["parallel.mode=ddp"])
    switches = DDPConfig(
        find_unused_parameters=True,
        broadcast_buffers=False,
        gradient_as_bucket_view=True,
        bucket_cap_mb=1.0,
        static_graph=True,
    )
    with process_group(config.parallel):
        parallel = config.parallel.model_copy(update={"ddp": switches})
        model = apply_parallel(
            NSAModel(config.model, config.attention), parallel, "fp32", torch.device("cpu")
        )
        assert model.find_unused_parameters
        assert model.gradient_as_bucket_view
        assert model.static_graph
        assert model.bucket_bytes_cap == 2**20
        assert not model.broadcast_buffers


def test_a_preset_sets_several_and_what_is_set_by_itself_goes_first():
    assert DDPConfig().arguments() == {}
    assert DDPConfig(preset="safe").arguments() == {
        "gradient_as_bucket_view": False,
        "bucket_cap_mb": 5.0,
        "find_unused_parameters": True,
        "broadcast_buffers": False,
    }
    static = DDPConfig(preset="static", gradient_as_bucket_view=True, bucket_cap_mb=1)
    assert static.arguments() == {"static_graph": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 1.0}


@pytest.mark.parametrize("preset", ["safe", "find_unused", "static"])
def test_every_preset_trains_as_none_does(preset):
    gates = ["attention.gate_gradients=false"] if preset == "safe" else []
    wanted = of_one_rank("parallel.mode=ddp", *gates)
    assert single("parallel.mode=ddp", f"parallel.ddp.preset={preset}") == pytest.approx(wanted, abs=1e-6)


def test_single_on_two_ranks_is_refused(monkeypatch):
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="single on 2 ranks"):
        single()


def test_wrapped_names_read_like_the_model_s():
    assert plain_name("module.blocks.1.mlp.fc2.weight") == "blocks.1.mlp.fc2.weight"
    assert plain_name("blocks.1._fsdp_wrapped_module.mlp.fc2.weight") == "blocks.1.mlp.fc2.weight"


AFTER_TRAINING = """
import time
from pathlib import Path
from nsa.train import main

def threads():
    return sorted(p.read_text().strip() for p in Path("/proc/self/task").glob("*/comm"))

for mode in ("ddp", "fsdp1", "fsdp2"):
    assert main(["tiny", "--train.steps", "1", "--parallel.mode", mode]) == 0
    # The kernel lists a thread for an instant after it was joined.
    end = time.monotonic() + 5
    while any("gloo" in name for name in threads()) and time.monotonic() < end:
        time.sleep(0.01)
    print("threads", mode, threads())
"""


@pytest.mark.slow
def test_no_thread_of_gloos_outlives_the_process_group() -> None:
    done = run_python("-c", AFTER_TRAINING)
    assert done.returncode == 0, done.stderr
    threads = [line for line in done.stdout.splitlines() if line.startswith("threads")]
    assert len(threads) == 3 and not any("gloo" in line for line in threads), "torch would abort now and then"
