# how: ranks
import nets
import torch
import torch.distributed as dist
from seen import say
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

R = nets.init()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nets.Net(), nets.Net()

    def forward(self, x):
        return self.two(checkpoint(self.one, x, use_reentrant=False))


model = DDP(Model())
optimizer, scaler = torch.optim.AdamW(model.parameters(), 1e-3), torch.amp.GradScaler("cpu")
torch.manual_seed(R)
for n in range(12):
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(4, 8)).float().square().mean()
    if n % 3:
        with model.no_sync():
            scaler.scale(loss / 3).backward()
        continue
    scaler.scale(loss / 3).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
say(loss.item().hex(), nets.digest(model.module), nets.draws())
del model
