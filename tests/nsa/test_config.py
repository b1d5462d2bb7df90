"""Configurations: what is accepted, what is refused, and in which words."""

import importlib
import sys

import pytest
import torch

from nsa.attention import backends_used, flash
from nsa.attention.dense import causal_attention
from nsa.config import AttentionConfig, ConfigError, ModelConfig
from nsa.options import dotted_keys, help_text, load_train_config, parse_command_line, shipped_configs
from nsa.parallel import DTYPES
from nsa.train import train


def refusal(*arguments):
    with pytest.raises(ConfigError) as caught:
        parse_command_line(list(arguments))
    return caught.value


def test_an_unknown_key_is_an_error_that_names_the_nearest():
    assert refusal("--model.layrs", "4").hint == "did you mean 'model.layers'?"


def test_an_unknown_key_in_a_file_is_an_error_that_names_section_and_nearest(tmp_path):
    (tmp_path / "bad.yaml").write_text("parallel: {ddp: {static_grph: true}}")
    error = refusal(str(tmp_path / "bad.yaml"))
    assert "parallel.ddp" in error.message
    assert error.hint == "did you mean 'static_graph'?"


def test_an_unknown_key_in_python_is_an_error_too():
    with pytest.raises(ConfigError, match="did you mean 'layers'"):
        ModelConfig(layrs=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.layers", "0"], "model.layers is '0'"),
        (["--parallel.mode", "dpp"], "parallel.mode is 'dpp'"),
        (["--model.heads", "5"], "heads is 5"),
        (["--model.head_dim", "15"], "head_dim is 15"),
        (["--model.layers"], "--model.layers has no value"),
        (["nosuch"], "no configuration 'nosuch'"),
        (["tiny", "train_showcase"], "two configurations"),
        (["--attention.select_block", "10"], "select_block is 10"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(arguments, message):
    assert message in refusal(*arguments).message


@pytest.mark.parametrize("text", ["model: [1, 2]", "- a", "a: b: c", "model: 3"])
def test_a_file_that_is_no_configuration_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "bad.yaml").write_text(text)
    error = refusal(str(tmp_path / "bad.yaml"))
    assert "\n" not in error.message + error.hint


def test_both_spellings_of_an_override_mean_the_same():
    spaced = parse_command_line(["tiny", "--model.layers", "4", "--optimizer.lr", "3e-4"])
    joined = parse_command_line(["tiny", "--model.layers=4", "--optimizer.lr=3e-4"])
    assert spaced == joined
    assert (spaced.model.layers, spaced.optimizer.lr) == (4, 3e-4)


def test_overrides_reach_every_kind_of_value():
    command = (
        "--train.compile --parallel.reentrant true --optimizer.clip_norm null --optimizer.betas=[0.8,0.9] "
        "--attention.branches compressed,sliding --parallel.ddp.find_unused_parameters on "
        "--telemetry.memory_steps="
    )
    config = parse_command_line(command.split())
    assert config.train.compile
    assert config.parallel.reentrant
    assert config.parallel.ddp.find_unused_parameters
    assert config.optimizer.clip_norm is None
    assert config.attention.branches == ("compressed", "sliding")
    assert config.optimizer.betas == (0.8, 0.9)
    assert config.telemetry.memory_steps == ()


def test_none_is_a_checkpointing_mode_and_not_null():
    config = load_train_config(None, ["parallel.activation_checkpointing=none"])
    assert config.parallel.activation_checkpointing == "none"


def test_help_lists_every_key_with_its_default():
    text = help_text()
    for key in dotted_keys():
        assert f"--{key} " in text
    assert "[CONFIG]" in text


@pytest.mark.parametrize("name", sorted(shipped_configs()))
def test_every_shipped_configuration_loads(name):
    assert load_train_config(name).train.precision in DTYPES


def test_the_production_configuration_is_the_field_s():
    config = load_train_config("m7c_125m_2xa100_production")
    assert (config.model.layers, config.model.dim, config.model.kv_groups) == (12, 768, 2)
    assert config.attention == AttentionConfig(compression="mean")
    assert (config.data.seq_len, config.data.batch_size, config.train.precision) == (2048, 1, "bf16")


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("checkpoint.resume=true", "checkpoint.resume is True, and checkpoint.dir is null"),
        ("checkpoint.every=100", "checkpoint.every is 100, and checkpoint.dir is null"),
        ("telemetry.tensorboard=true", "telemetry.tensorboard is True, and telemetry.dir is null"),
        ("data.path=/tmp", "data.path is /tmp, and data.source is synthetic"),
    ],
)
def test_a_key_without_effect_is_refused(override, named):
    with pytest.raises(ConfigError, match=named):
        load_train_config("tiny", [override])


def test_flash_attn_is_optional_and_refused_where_it_cannot_run(monkeypatch):
    config = load_train_config("tiny", ["model.attention=dense", "model.flash=true"])
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"model.flash is true, and there is no GPU"):
            train(config)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    with pytest.raises(ConfigError, match="flash-attn is not installed") as caught:
        flash.chosen()
    assert "pip install --pre flash-attn-4" in caught.value.hint


def test_the_flash_attn_that_is_used_is_one_that_this_gpu_can_train_by(monkeypatch, tmp_path):
    for module in ("flash_attn/cute/__init__.py", "flash_attn/flash_attn_interface.py"):
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / module).write_text("def flash_attn_func(q, k, v, causal): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "an A100")
    assert flash.installed() == ["FA4", "FA2"]
    for capability, name in (((9, 0), "FA4"), ((8, 0), "FA2")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda got=capability: got)
        assert flash.chosen() == name
    (tmp_path / "flash_attn/flash_attn_interface.py").unlink()
    importlib.invalidate_caches()
    for loaded in [name for name in sys.modules if name.startswith("flash_attn")]:
        monkeypatch.delitem(sys.modules, loaded)
    with pytest.raises(ConfigError, match="FA4 cannot train on an A100"):
        flash.chosen()


def test_flash_attn_is_the_dense_control_s_alone():
    with pytest.raises(ConfigError, match="flash is true with attention nsa, which has kernels of its own"):
        load_train_config("tiny", ["model.flash=true"])


def test_calls_that_flash_attn_does_not_support_fall_back_and_are_counted():
    q, k, v = (torch.randn(1, 9, 2, 8) for _ in range(3))
    before = backends_used().fallbacks.get("dense FA4 -> torch: on cpu", 0)
    assert torch.equal(causal_attention(q, k, v, "FA4"), causal_attention(q, k, v))
    assert backends_used().fallbacks["dense FA4 -> torch: on cpu"] == before + 1
