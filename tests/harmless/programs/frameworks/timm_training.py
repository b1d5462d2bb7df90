# how: torchrun
# needs: timm
# slow
import nets
import timm
import torch
from seen import say
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3

nets.init()
torch.manual_seed(0)
inner = timm.create_model("resnet10t", num_classes=4)
model = torch.nn.parallel.DistributedDataParallel(inner)
optimizer, ema = create_optimizer_v2(model, opt="adamw", lr=1e-3), ModelEmaV3(inner, decay=0.9)
for _ in range(3):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(torch.randn(2, 3, 64, 64)), torch.tensor([0, 1]))
    loss.backward()
    optimizer.step()
    ema.update(inner)
say(loss.item().hex(), nets.digest(inner), nets.digest(ema.module))
del model
torch.distributed.destroy_process_group()
