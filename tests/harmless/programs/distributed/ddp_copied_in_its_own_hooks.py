# how: ranks
import copy
import io
import pickle

import nets
import seen
import torch
from seen import say
from torch import nn

R = nets.init()
model = nn.parallel.DistributedDataParallel(nets.Net())
optimizer = torch.optim.Adam(model.parameters(), 0.01)
kept = []


def whole(*_):
    kept.append((nets.digest(copy.deepcopy(model.module)), seen.size(pickle.dumps(optimizer))))


def written(*_):
    buffer = io.BytesIO()
    torch.save({"model": model.module, "optimizer": optimizer, "state": optimizer.state_dict()}, buffer)
    kept.append((b"nsadiag" in buffer.getvalue(), seen.size(buffer.getvalue())))
    again = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    again["model"](torch.ones(2, 8)).sum().backward()
    again["optimizer"].step()
    kept.append(nets.digest(again["model"]))


handles = [
    model.register_forward_hook(whole),
    model.module.a.register_full_backward_hook(whole),
    model.module.b.weight.register_post_accumulate_grad_hook(whole),
    optimizer.register_step_pre_hook(whole),
    optimizer.register_step_post_hook(written),
]
for _ in range(4):
    nets.train(model, 1, optimizer, x=torch.ones(8))
for handle in handles:
    handle.remove()
shallow = copy.copy(optimizer)
deep = copy.deepcopy({"m": model.module, "o": optimizer, "p": list(model.parameters())})
say(kept)
say(sorted(vars(shallow)), sorted(deep["o"].__getstate__()), shallow.param_groups is optimizer.param_groups)
say(nets.train(model, 30, optimizer, x=torch.ones(8))[0], nets.digest(model, deep["m"]))
del model
