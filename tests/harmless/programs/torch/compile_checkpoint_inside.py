# how: many
import nets
import torch
import torch._dynamo as dynamo
from torch.utils.checkpoint import checkpoint


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nets.Net(), nets.Net()

    def forward(self, x):
        return self.two(checkpoint(self.one, x, use_reentrant=False))


model = Model()
print(nets.train(torch.compile(model, backend="aot_eager", fullgraph=True))[0], nets.digest(model))
print(dynamo.utils.counters["stats"]["unique_graphs"])
