# how: many
import nets
import seen
import torch

calls = []
for owner, name in (
    (torch, "save"), (torch, "load"), (torch.autograd, "backward"), (torch.Tensor, "backward"),
    (torch.optim.SGD, "step"), (torch.optim.Optimizer, "zero_grad"), (torch.nn.functional, "relu"),
    (torch.optim.Optimizer, "add_param_group"), (torch.optim.Optimizer, "load_state_dict"),
):  # fmt: skip
    before = getattr(owner, name)

    def mine(*args, _before=before, _name=name, **kwargs):
        calls.append(_name)
        return _before(*args, **kwargs)

    setattr(owner, name, mine)
    model = nets.Net()
    _, optimizer = nets.train(model, 2)
    torch.save(model.state_dict(), "x.pt")
    model.load_state_dict(torch.load("x.pt"))
    optimizer.load_state_dict(optimizer.state_dict())
    seen.say(name, getattr(owner, name) is mine, calls)
    setattr(owner, name, before)
    calls.clear()
    nets.train(nets.Net(), 1)
    seen.say(name, getattr(owner, name) is before, calls)
