# how: torchrun
# needs: lightning
# slow
import lightning
import nets
import torch
from seen import say
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nets.Net()

    def training_step(self, batch, n):
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, n):
        self.log("val", self.net(batch[0]).mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


torch.manual_seed(0)
data = DataLoader(TensorDataset(torch.randn(32, 8)), 4)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Model()
trainer.fit(model, data, data)
say(
    nets.digest(model.net),
    {k: v.item().hex() for k, v in trainer.callback_metrics.items()},
    trainer.should_stop,
)
