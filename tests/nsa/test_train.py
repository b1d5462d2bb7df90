"""The command `python -m nsa.train`."""

import gc
import os
import re
import shutil
import signal
import subprocess
import sys

import psutil
import pytest
import torch
import torch.distributed as dist
from launching import ROOT, TWO_RANKS, run_python
from torch.nn.parallel import DistributedDataParallel

from nsa.config import ConfigError, OptimizerConfig
from nsa.model import NSAModel
from nsa.options import load_train_config
from nsa.train import main, train
from nsa.training.checkpoint import newest_checkpoint
from nsa.training.optimizer import learning_rate
from nsa.training.throughput import flops_per_token, peak_flops
from nsa.training.variables import ANSWERS


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
        ("NSA_TRACE_GRADS", "`nsadiag run`: blackbox.bin"),
        ("NSA_TRACE_BUCKETS", "ddp.json"),
        ("NSA_MEM_DUMP_EVERY", "--telemetry.memory_every N"),
        ("NSA_STOPGRAD_GATES", "--attention.gate_gradients false"),
        ("NSA_USE_FA2", "--model.flash true"),
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


def test_the_documentation_has_the_answer_to_each_variable():
    page = (ROOT / "docs/nsa.md").read_text()
    for prefix, answer in ANSWERS:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{prefix}*` |")]
        assert answer in row.replace("| `--", "| --"), prefix


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


def test_wsd_is_constant_between_its_warm_up_and_its_decay():
    config = OptimizerConfig(schedule="wsd", lr=1.0, warmup_steps=4, min_lr_ratio=0.1, decay_share=0.25)
    rates = [learning_rate(config, step, 40) for step in range(1, 41)]
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[4:30] == [1.0] * 26
    assert rates[30:] == pytest.approx([1 - 0.09 * step for step in range(1, 11)])
    with pytest.raises(ConfigError, match="decay_share is 2"):
        OptimizerConfig(decay_share=2)


def test_a_longer_run_continues_a_wsd_run_from_before_its_decay(tmp_path):
    options = ["optimizer.schedule=wsd", "optimizer.decay_share=0.5", "checkpoint.every=2"]
    long = train(
        load_train_config("tiny", [*options, "train.steps=8", f"checkpoint.dir={tmp_path / 'long'}"])
    )
    train(load_train_config("tiny", [*options, "train.steps=4", f"checkpoint.dir={tmp_path / 'short'}"]))
    shutil.rmtree(tmp_path / "short/step_4")
    resumed = [*options, "train.steps=8", f"checkpoint.dir={tmp_path / 'short'}", "checkpoint.resume=true"]
    assert train(load_train_config("tiny", resumed)) == long[2:]


def test_safe_mode_says_what_it_sets_and_explicit_values_override_it(capsys):
    options = ["--parallel.mode", "ddp", "--parallel.ddp.preset", "safe"]
    assert main(["tiny", *options, "--parallel.ddp.bucket_cap_mb", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "preset safe: parallel.ddp.find_unused_parameters=True, parallel.ddp.broadcast_buffers=False, "
        "parallel.ddp.gradient_as_bucket_view=False, parallel.ddp.bucket_cap_mb=1.0, "
        "attention.backend=torch, attention.gate_gradients=False\n"
    )
    assert "nsa (torch) attention" in said
    config = load_train_config("tiny", ["parallel.ddp.preset=safe", "attention.backend=reference"])
    assert config.attention.backend == "reference" and not config.attention.gate_gradients


def test_gates_without_gradients_stay_as_they_were_and_all_else_trains():
    torch.manual_seed(0)
    config = load_train_config("tiny", ["attention.gate_gradients=false"])
    model = NSAModel(config.model, config.attention)
    tokens = torch.randint(256, (1, 40))
    model(tokens, tokens).backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == (".gate." in name), name


def ended_by_sigterm(*options: str, ranks: int = 1) -> subprocess.CompletedProcess:
    """A run of very many steps, one rank of which was sent SIGTERM at its third."""
    launcher = TWO_RANKS if ranks > 1 else ()
    command = [
        sys.executable,
        "-u",
        *launcher,
        "-m",
        "nsa.train",
        "tiny",
        "--train.steps",
        "1000000",
        *options,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("step 3 "):
                pids = [process.pid] if ranks == 1 else psutil.Process(process.pid).children()
                os.kill(pids[-1] if ranks == 1 else pids[-1].pid, signal.SIGTERM)
        errors = process.stderr.read()
    return subprocess.CompletedProcess(command, process.returncode, "".join(lines), errors)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_sigterm_saves_the_step_and_stops_every_rank(ranks, tmp_path):
    mode = ["--parallel.mode", "ddp"] if ranks > 1 else []
    done = ended_by_sigterm("--checkpoint.dir", str(tmp_path), *mode, ranks=ranks)
    last = done.stdout.splitlines()[-1]
    assert last.startswith("stopped (SIGTERM): "), done.stdout + done.stderr
    step = int(last.split()[2])
    assert [path.name for path in tmp_path.iterdir()] == [f"step_{step}"]
    assert done.returncode == (143 if ranks == 1 else 1)  # torchrun's own code for a rank that failed
    (tmp_path / "resumed").mkdir()
    resumed = ["checkpoint.resume=true", f"checkpoint.dir={tmp_path}", f"train.steps={step + 1}"]
    assert len(train(load_train_config("tiny", resumed))) == 1


def test_without_a_directory_sigterm_ends_a_run_as_ever():
    assert ended_by_sigterm().returncode == -signal.SIGTERM


def test_a_deadline_saves_and_stops(tmp_path, capsys):
    before = signal.getsignal(signal.SIGTERM)
    options = [
        "--train.steps",
        "1000000",
        "--checkpoint.dir",
        str(tmp_path),
        "--checkpoint.deadline_s",
        "0.2",
    ]
    assert main(["tiny", *options]) == 0
    assert "stopped (deadline): " in capsys.readouterr().out
    assert newest_checkpoint(tmp_path) is not None
    assert signal.getsignal(signal.SIGTERM) is before
    assert main(["tiny", "--checkpoint.deadline_s", "1"]) == 2


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
