"""Trains the model of tests/nsa/data/counting, which counts in words: `python tests/nsa/make_counting_model.py`."""

from pathlib import Path

import torch

from nsa.hf import NSAConfig, NSAForCausalLM

TEXT = "one two three four five six seven eight nine ten eleven twelve "
STEPS, ROWS, TOKENS = 250, 8, 128
CONFIG = NSAConfig(
    hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
    compress_block=8, compress_stride=4, select_block=8, select_count=4, window=16, compression="mean",
)  # fmt: skip


def main() -> None:
    torch.manual_seed(0)
    model = NSAForCausalLM(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=STEPS)
    stream = torch.tensor(list((TEXT * 20).encode()))
    for step in range(STEPS):
        starts = torch.randint(len(TEXT), (ROWS,))
        tokens = torch.stack([stream[start : start + TOKENS] for start in starts])
        loss = model(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 25 == 0 or step == STEPS - 1:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    model.save_pretrained(Path(__file__).parent / "data/counting")


if __name__ == "__main__":
    main()
