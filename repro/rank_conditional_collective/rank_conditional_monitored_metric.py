"""Rank 0 alone logs the score that ModelCheckpoint watches, and saves a checkpoint for it, which takes all ranks.

Modelled on Lightning #19045: "rank_zero_only=True" in the call of `log`, and "the checkpoint callback assumes it gets a
monitor value that is the same across all ranks". Without the metric rank 1 has nothing to save.

On plain torchrun: a warning that the monitored key is not there, then silence; both ranks are in `Trainer.fit`.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: rank_conditional_collective
  guilty_ranks: [0]
  code: "self.log(\\"score\\""
"""

import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        if self.global_rank == 0:
            held_out = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
            self.log("score", -self.net(held_out).abs().mean(), rank_zero_only=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    torch.manual_seed(0)
    rows = TensorDataset(torch.randn(256, 16), torch.randn(256, 1))
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            max_epochs=3,
            callbacks=[ModelCheckpoint(folder, monitor="score", mode="max")],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Regression(), DataLoader(rows, 16))


if __name__ == "__main__":
    main()
