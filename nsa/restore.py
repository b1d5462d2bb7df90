"""The description and the model of a checkpoint, in one process: of `nsa.train`, or a directory of transformers."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

import nsa
from nsa.config import ConfigError, TrainConfig
from nsa.model import NSAModel
from nsa.training import corpus

DESCRIPTION = "nsa.json"


def write_description(directory: Path, config: TrainConfig) -> None:
    """Write `config` to `directory`, and copies of the tokenizer of its data and what describes it, if there are any."""
    description = {"nsa": nsa.__version__, "config": config.model_dump()}
    (directory / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    if config.data.source == "tokens":
        copy_tokenizer(Path(config.data.path or "."), directory)


def copy_tokenizer(source: Path, directory: Path) -> None:
    """Copy the tokenizer in the directory `source`, and the description of its token ids, where they are there."""
    for name in (corpus.TOKENIZER, corpus.DESCRIPTION):
        if (source / name).is_file():
            shutil.copyfile(source / name, directory / name)


def read_config(checkpoint: Path) -> TrainConfig:
    """The configuration of the run that wrote `checkpoint`; ConfigError if there is none that can be used."""
    file = checkpoint / DESCRIPTION
    try:
        values: Any = json.loads(file.read_text(encoding="utf-8"))["config"]
        return TrainConfig(**values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{file} cannot be used: {type(error).__name__}: {error}",
            "name a checkpoint (step_N) that this version of nsa.train wrote, or the directory that holds some",
        ) from None


def check_same_model(checkpoint: Path, config: TrainConfig) -> None:
    """Raise ConfigError if `checkpoint` says that it holds a model of other sizes than `config` has."""
    if not (checkpoint / DESCRIPTION).exists():
        return
    saved = read_config(checkpoint)
    for section in ("model", "attention"):
        theirs, ours = (getattr(each, section).model_dump() for each in (saved, config))
        for key, value in ours.items():
            if theirs[key] != value and key not in ("backend", "gate_gradients"):
                raise ConfigError(
                    f"{section}.{key} is {value}, and {theirs[key]} in {checkpoint}",
                    "resume with the same model, or in another checkpoint.dir",
                )


def is_of_transformers(path: Path) -> bool:
    """Whether `path` is a directory that `NSAForCausalLM.save_pretrained` wrote."""
    file = path / "config.json"
    try:
        return json.loads(file.read_text(encoding="utf-8")).get("model_type") == "nsa"
    except (OSError, ValueError, AttributeError):
        return False


def load_model(checkpoint: Path) -> tuple[NSAModel, TrainConfig]:
    """The model of a checkpoint, on the CPU in the dtype of its weights, and the configuration of its run.

    A directory of transformers has no run: its configuration is that of the model, and else the default.
    Raises ConfigError for what is neither.
    """
    if is_of_transformers(checkpoint):
        return _load_of_transformers(checkpoint)
    config = read_config(checkpoint)
    with torch.device("meta"):
        model = NSAModel(config.model, config.attention)
    if config.train.precision == "bf16_pure":
        model = model.to(torch.bfloat16)
    model = model.to_empty(device="cpu")
    state = {"model": model.state_dict()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single process.*")  # there is no process group
        dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    model.load_state_dict(state["model"])
    return model.eval(), config


def save_model(checkpoint: Path, model: NSAModel, config: TrainConfig) -> None:
    """Write the weights of `model` and `config` as a checkpoint that `load_model` reads; ConfigError if it exists."""
    if checkpoint.exists():
        raise ConfigError(f"{checkpoint} exists", "name a new directory")
    unfinished = checkpoint.with_name(f".{checkpoint.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    write_description(unfinished, config)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single process.*")
        dcp.save({"model": model.state_dict()}, checkpoint_id=unfinished, no_dist=True)
    unfinished.rename(checkpoint)


def _load_of_transformers(directory: Path) -> tuple[NSAModel, TrainConfig]:
    try:
        from nsa.hf import NSAForCausalLM  # needs transformers
    except ModuleNotFoundError as error:
        raise ConfigError(f"{directory} needs the package {error.name}", "pip install transformers") from None
    loaded = NSAForCausalLM.from_pretrained(directory, dtype="auto")
    precision = "bf16_pure" if loaded.dtype == torch.bfloat16 else "fp32"
    config = TrainConfig(
        model=loaded.config.model_config(),
        attention=loaded.config.attention_config(),
        train={"precision": precision},
    )
    return loaded.model.eval(), config
