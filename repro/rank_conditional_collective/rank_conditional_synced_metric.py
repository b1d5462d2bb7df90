"""Rank 0 alone logs a metric with sync_dist=True, and Lightning takes its mean over all ranks at the end of the epoch.

Modelled on Lightning #8821 and #19604: the collective comes long after the line that asked for it, within the framework.

On plain torchrun: silence after the first epoch; both ranks are in `Trainer.fit`, one in a barrier and one in a broadcast.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: hung (proven)
  class: rank_conditional_collective
  guilty_ranks: [0]
  code: "self.log(\\"weight_norm\\""
"""

import lightning as L
import torch
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
        if self.trainer.is_global_zero:
            self.log("weight_norm", self.net[-1].weight.norm(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    torch.manual_seed(0)
    rows = TensorDataset(torch.randn(256, 16), torch.randn(256, 1))
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), DataLoader(rows, 16))


if __name__ == "__main__":
    main()
