# how: many
import nets
import torch
import torch._dynamo as dynamo

model = nets.Net()
compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
print(nets.train(compiled)[0], nets.digest(model))
print(dynamo.utils.counters["stats"]["unique_graphs"], dict(dynamo.utils.counters["graph_break"]))
told = dynamo.explain(nets.Net())(torch.ones(2, 8))
print(told.graph_count, told.graph_break_count, told.op_count)
