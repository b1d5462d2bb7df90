# how: many
import torch


@torch.compile(backend="eager", fullgraph=True)
def f(x):
    print("inside")
    return x * 2


try:
    print(f(torch.ones(2)))
except Exception as error:
    print(type(error).__name__, str(error)[:1500])
