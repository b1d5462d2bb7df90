# how: ranks
import nets
import torch
from seen import say
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

R = nets.init()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.drop = nets.Net(), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(checkpoint(self.net, x, use_reentrant=False))


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


for policy in (MixedPrecisionPolicy(), MixedPrecisionPolicy(param_dtype=torch.bfloat16)):
    torch.manual_seed(0)
    model = Whole()
    for number, block in enumerate(model.blocks):
        if number:
            block = model.blocks[number] = checkpoint_wrapper(block, CheckpointImpl.NO_REENTRANT)
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    say(nets.train(model, 30, optimizer, x=torch.ones(2, 8) * (R + 1))[0])
    say(nets.digest(model), isinstance(model, FSDPModule), type(model).__name__)
    optimizer.zero_grad()
    held = list(model.parameters())
    model.double()  # sharded tensors are swapped where they are
    model.float()
    say(all(a is b for a, b in zip(held, model.parameters(), strict=True)))
    say(nets.train(model, 5, optimizer, x=torch.ones(2, 8))[0], nets.digest(model))
    model.unshard()
    say([tuple(p.shape) for p in model.parameters()][:2])
    model.reshard()
    say(nets.train(model, 5, optimizer, x=torch.ones(2, 8))[0], nets.digest(model))
