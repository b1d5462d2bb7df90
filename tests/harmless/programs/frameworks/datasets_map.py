# how: many
# needs: datasets
import datasets
import torch

datasets.disable_progress_bars()
rows = datasets.Dataset.from_dict({"x": list(range(6))})
print(
    rows.map(lambda r: {"y": r["x"] * 2})["y"][:],
    rows.with_format("torch")[0]["x"].item(),
    torch.ones(1).item(),
)
