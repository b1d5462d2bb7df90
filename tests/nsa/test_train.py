"""The command `python -m nsa.train`."""

import gc
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from launching import TWO_RANKS, run_python
from torch.nn.parallel import DistributedDataParallel

from nsa.config import ConfigError, OptimizerConfig
from nsa.options import load_train_config
from nsa.train import main, train
from nsa.training.optimizer import learning_rate
from nsa.training.throughput import flops_per_token, peak_flops


def test_the_command_trains_and_says_so():
    done = run_python("-m", "nsa.train", "tiny", "--train.steps", "2")
    assert done.returncode == 0, done.stderr
    assert (
        len(
            re.findall(
                r"^step \d loss \d\.\d{4} tok/s \d+ tokens \d+ mem \d+ MiB$", done.stdout, re.MULTILINE
            )
        )
        == 2
    )
    assert done.stdout.splitlines()[-1].startswith("done: 2 steps in ")
    assert done.stderr == ""


def test_bad_input_is_one_line_and_a_hint_and_code_2(capsys):
    assert main(["tiny", "--model.layrs", "2"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "error: unknown key 'model.layrs'\nhint: did you mean 'model.layers'?\n"


@pytest.mark.parametrize(
    ("variable", "instead"),
    [
        ("NSA_DDP_SAFE_MODE", "--parallel.ddp.preset safe"),
        ("NSA_FORCE_SDPA", "--attention.backend"),
        ("NSA_TRACE_GRADS", "`nsadiag run`"),
        ("NSA_SOMETHING", "--help"),
    ],
)
def test_a_variable_of_the_field_s_scripts_is_refused_with_what_to_give_instead(
    variable, instead, monkeypatch, capsys
):
    monkeypatch.setenv(variable, "1")
    assert main(["tiny"]) == 2
    said = capsys.readouterr().err
    assert f"{variable}=1 is set, and is not read" in said and instead in said


@pytest.mark.slow
def test_only_rank_0_speaks():
    done = run_python(*TWO_RANKS, "-m", "nsa.train", "tiny", "--parallel.mode", "ddp", "--train.steps", "2")
    assert done.stdout.count("step 2 ") == 1, done.stderr


def test_importing_the_trainer_starts_no_thread_and_the_run_imports_nothing_heavy():
    # Cells are forked from a process that has imported nsa.train: threads would not survive that.
    program = """
import os, sys, torch, nsa.train
assert len(os.listdir("/proc/self/task")) == 1
assert not torch.cuda.is_initialized()
before = set(sys.modules)
nsa.train.main(["tiny", "--parallel.mode", "ddp", "--parallel.activation_checkpointing", "full"])
print("imported later:", sorted(set(sys.modules) - before))
"""
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].count("'") <= 10


def test_main_returns_codes_instead_of_exiting(capsys):
    assert main(["--help"]) == 0
    assert main(["nosuch"]) == 2
    assert "--model.layers int" in capsys.readouterr().out


def test_help_may_be_cut_off_by_head():
    script = f"{sys.executable} -u -m nsa.train --help | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")


def test_the_loss_falls():
    losses = train(load_train_config("tiny", ["train.steps=40", "optimizer.lr=0.01"]))
    assert sum(losses[-5:]) / 5 < losses[0] - 0.5


@pytest.mark.parametrize("precision", ["bf16", "bf16_pure"])
def test_bf16_trains_close_to_fp32(precision):
    wanted = train(load_train_config("tiny"))
    assert train(load_train_config("tiny", [f"train.precision={precision}"])) == pytest.approx(
        wanted, abs=0.05
    )


def test_the_model_is_gone_before_the_process_group_is_left(monkeypatch):
    # DDP's reducer as the last holder of the group can deadlock in its destructor.
    alive, destroy = [], dist.destroy_process_group

    def counting_destroy():
        alive.append(sum(type(thing) is DistributedDataParallel for thing in gc.get_objects()))
        destroy()

    gc.collect()
    monkeypatch.setattr(dist, "destroy_process_group", counting_destroy)
    train(load_train_config("tiny", ["parallel.mode=ddp"]))
    assert alive == [0]


def test_evaluation_does_not_change_training(capsys):
    plain = train(load_train_config("tiny"))
    assert train(load_train_config("tiny", ["train.eval_every=1", "train.eval_batches=2"])) == plain
    assert "eval 3 loss" in capsys.readouterr().out


def test_telemetry_does_not_change_training(tmp_path):
    plain = train(load_train_config("tiny"))
    assert train(load_train_config("tiny", [f"telemetry.dir={tmp_path}", "telemetry.every=1"])) == plain


def test_the_share_of_a_gpu_s_peak_counts_what_a_query_sees():
    config = load_train_config("m7c_125m_2xa100_production")
    dense = config.model_copy(update={"model": config.model.model_copy(update={"attention": "dense"})})
    long = config.model_copy(update={"data": config.data.model_copy(update={"seq_len": 65536})})
    parameters = 78_617_376
    attention = 12 * 12 * 12 * 64
    assert flops_per_token(dense, parameters) == 6 * parameters + attention * 1024.5
    assert flops_per_token(long, parameters) == 6 * parameters + attention * (32768.5 / 16 + 1024 + 512)
    assert peak_flops(torch.device("cpu")) is None


def test_the_learning_rate_warms_up_and_decays():
    config = OptimizerConfig(lr=1.0, warmup_steps=4, min_lr_ratio=0.1)
    rates = [learning_rate(config, step, 20) for step in range(1, 21)]
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=0.02)


def test_the_dense_control_trains():
    assert all(torch.isfinite(torch.tensor(train(load_train_config("tiny", ["model.attention=dense"])))))


def test_a_step_graph_without_a_gpu_is_refused():
    with pytest.raises(ConfigError, match="cuda_graph is true, and there is no GPU"):
        train(load_train_config("tiny", ["train.cuda_graph=true", "parallel.device=cpu"]))


def test_the_attention_that_was_chosen_is_said_and_one_that_is_not_there_refused(capsys):
    train(load_train_config("tiny"))
    assert "M parameters, nsa (torch) attention, single on" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="'triton' is not available on cpu"):
        train(load_train_config("tiny", ["attention.backend=triton"]))
