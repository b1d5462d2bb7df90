# how: python
# needs: lightning
# slow
# unordered
import lightning
import nets
import torch
from lightning.pytorch.demos.boring_classes import BoringModel

if __name__ == "__main__":
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp_spawn",
        max_steps=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = BoringModel()
    trainer.fit(model)
    print(nets.digest(model))
