# how: rank
import nets
import torch
import torch._dynamo as dynamo

model, seen = nets.Net(), []
model.a.register_forward_hook(lambda m, i, o: o * 2)
model.b.register_full_backward_hook(lambda *_: seen.append(1))
print(nets.train(torch.compile(model, backend="aot_eager"))[0], nets.digest(model), len(seen))
print(dynamo.utils.counters["stats"]["unique_graphs"], sum(dynamo.utils.counters["graph_break"].values()))
