# how: torchrun
# needs: deepspeed
# slow
import deepspeed
import nets
import torch
from seen import say

torch.manual_seed(0)
model = nets.Net()
config = {
    "train_batch_size": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_optimization": {"stage": 0},
}
engine, _, _, _ = deepspeed.initialize(model=model, config=config, dist_init_required=True)
for _ in range(4):
    loss = engine(torch.randn(2, 8)).square().mean()
    engine.backward(loss)
    engine.step()
say(loss.item().hex(), nets.digest(model))
