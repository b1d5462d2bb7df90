# how: many
import nets
import torch
import torch._dynamo as dynamo

model = nets.Net()
nets.train(model, 100)
compiled = torch.compile(model, backend="aot_eager")
print(
    nets.train(compiled, 60)[0],
    nets.digest(model),
    dict(dynamo.utils.counters["graph_break"]),
    dynamo.utils.counters["stats"]["unique_graphs"],
)
print(nets.train(model, 60)[0], nets.digest(model))
