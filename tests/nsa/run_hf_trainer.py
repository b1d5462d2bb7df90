"""Trains a tiny model by transformers' Trainer, alone or under torchrun: `run_hf_trainer.py DIRECTORY ROWS_A_RANK`.

DIRECTORY/log.json, written by rank 0, holds the logged losses; DIRECTORY/model what was trained.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments

from nsa.hf import NSAConfig, NSAForCausalLM

CONFIG = NSAConfig(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32,
    compress_block=4, compress_stride=2, select_block=4, select_count=3, window=5,
)  # fmt: skip


def example(n: int) -> dict[str, torch.Tensor]:
    """A row of 24 bytes, padded from the n-th multiple of three on."""
    tokens = torch.arange(24) % 5 + n + 1
    mask = torch.ones(24, dtype=torch.int64)
    mask[24 - 3 * (n % 3) :] = 0
    return {
        "input_ids": tokens * mask,
        "attention_mask": mask,
        "labels": tokens.where(mask.bool(), torch.tensor(-100)),
    }


def main() -> None:
    directory, rows = Path(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=str(directory), max_steps=4, per_device_train_batch_size=rows, learning_rate=1e-2,
        logging_steps=1, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True, seed=0,
        gradient_checkpointing=True, ddp_find_unused_parameters=False,
    )  # fmt: skip
    trainer = Trainer(NSAForCausalLM(CONFIG), arguments, train_dataset=[example(n) for n in range(16)])
    trainer.train()
    trainer.save_model(str(directory / "model"))
    if trainer.is_world_process_zero():
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        (directory / "log.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
