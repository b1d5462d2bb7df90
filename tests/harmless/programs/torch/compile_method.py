# how: many
import nets
import torch
import torch._dynamo as dynamo

model = nets.Net()
model.compile(backend="aot_eager", fullgraph=True)
print(nets.train(model)[0], nets.digest(model), dynamo.utils.counters["stats"]["unique_graphs"])
