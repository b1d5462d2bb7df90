# how: ranks
import nets
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.distributed.nn.functional as autograd
from seen import say

R = nets.init()
x = torch.arange(4.0) + R
say(
    fc.all_reduce(x, "sum", dist.group.WORLD).tolist(),
    fc.all_gather_tensor(x, 0, [0, 1]).tolist(),
    type(fc.all_reduce(x, "sum", [0, 1])).__name__,
)
say(
    fc.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD).tolist(),
    fc.broadcast(x, 0, dist.group.WORLD).tolist(),
)
say(
    fc.all_to_all_single(x, [2, 2], [2, 2], dist.group.WORLD).tolist(),
    fc.wait_tensor(fc.all_reduce(x, "max", dist.group.WORLD)).tolist(),
)
y = x.clone().requires_grad_()
autograd.all_reduce(y * 2).sum().backward()
say(y.grad.tolist(), [t.tolist() for t in autograd.all_gather(y)])
