# how: many
import torch


@torch.jit.script
def f(x: torch.Tensor) -> torch.Tensor:
    print("scripted", x.shape[0])
    return x + 1


print(f(torch.ones(2)), f.graph)
