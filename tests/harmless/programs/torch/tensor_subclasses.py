# how: many
import nets
import torch

calls = []


class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        calls.append(function.__name__)
        return super().__torch_function__(function, kinds, args, kwargs or {})


model = nets.Net()
model.a.weight = torch.nn.Parameter(model.a.weight.detach().as_subclass(Tagged))
nets.train(model, 60)
print(
    len(calls),
    sorted(set(calls)),
    [calls.count(c) for c in sorted(set(calls))],
    type(model.a.weight).__name__,
)
