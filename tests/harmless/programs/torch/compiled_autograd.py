# how: many
import nets
import torch
import torch._dynamo as dynamo

model = nets.Net()
with dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
    print(nets.train(model, 3)[0], nets.digest(model), dynamo.utils.counters["compiled_autograd"])
