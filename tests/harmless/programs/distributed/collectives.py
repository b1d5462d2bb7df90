# how: ranks
import nets
import torch
import torch.distributed as dist
from seen import say

R = nets.init()
x = torch.arange(4.0) + R
for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
    t = x.clone()
    say(op, dist.all_reduce(t, op), t.tolist())
t = x.clone()
say(dist.broadcast(t, src=1), t.tolist())
say(dist.broadcast(tensor=t, src=0, group=None, async_op=False), t.tolist())
t = x.clone()
say(dist.reduce(t, dst=0), t.tolist() if R == 0 else "")
out = [torch.empty(4) for _ in range(2)]
say(dist.all_gather(out, x), [o.tolist() for o in out])
whole = torch.empty(8)
say(dist.all_gather_into_tensor(whole, x), whole.tolist())
say(dist.gather(x, out if R == 0 else None, dst=0), [o.tolist() for o in out])
part = torch.empty(4)
say(dist.scatter(part, [x, x * 2] if R == 0 else None, src=0), part.tolist())
small = torch.empty(2)
say(dist.reduce_scatter_tensor(small, x.clone()), small.tolist())
say(dist.reduce_scatter(small, [x[:2].clone(), x[2:].clone()]), small.tolist())
mixed = torch.empty(4)
say(dist.all_to_all_single(mixed, x), mixed.tolist())
say(dist.barrier(), dist.monitored_barrier())
