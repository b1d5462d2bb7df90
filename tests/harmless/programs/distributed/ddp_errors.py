# how: ranks
import traceback

import nets
import seen
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

nets.init()


class Unused(nets.Net):
    def forward(self, x):
        return torch.relu(self.a(x))


for make in (lambda: DDP(torch.nn.ReLU()), lambda: DDP(nets.Net(), nothing=1), lambda: DDP(Unused())):
    try:
        model = make()
        for _ in range(2):
            model(torch.ones(2, 8)).sum().backward()
    except Exception as error:
        seen.say(
            type(error).__name__,
            seen.plain(error)[:600].replace("\n", " "),
            [f.name for f in traceback.extract_tb(error.__traceback__)],
        )
model = None
