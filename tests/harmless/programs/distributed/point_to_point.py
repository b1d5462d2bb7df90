# how: ranks
import nets
import torch
import torch.distributed as dist
from seen import say

R = nets.init()
t = torch.arange(3.0) * (R + 1)
if R == 0:
    say(dist.send(t, 1, tag=3), dist.isend(t * 2, dst=1).wait())
else:
    say(dist.recv(t, 0, tag=3), t.tolist(), dist.irecv(t, src=0).wait(), t.tolist())
got = torch.empty(3)
ops = [dist.P2POp(dist.isend, t, 1 - R), dist.P2POp(dist.irecv, got, 1 - R)]
say(
    [w.wait() for w in dist.batch_isend_irecv(ops)],
    got.tolist(),
    ops[0].op is dist.isend,
    repr(ops[0].op)[:20],
)
anywhere = torch.empty(1)
say(dist.recv(anywhere) if R else dist.send(torch.ones(1), 1), anywhere.tolist() if R else "")
for bad in (
    lambda: dist.P2POp(print, t, 1 - R),
    lambda: dist.batch_isend_irecv([]),
    lambda: dist.send(t, R),
    lambda: dist.send("x", 1),
):
    try:
        say(bad())
    except Exception as error:
        say(type(error).__name__, str(error)[:100])
dist.barrier()
