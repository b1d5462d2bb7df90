# how: many
import nets
import torch
import torch._dynamo as dynamo

model = nets.Net()
optimizer = torch.optim.Adam(model.parameters(), 1e-2)


@torch.compile(backend="aot_eager")
def step():
    optimizer.step()


for _ in range(4):
    model(torch.randn(4, 8)).square().mean().backward()
    step()
    optimizer.zero_grad()
print(
    nets.digest(model),
    dynamo.utils.counters["stats"]["unique_graphs"],
    sum(dynamo.utils.counters["graph_break"].values()),
)
