# how: ranks
import nets
import torch.distributed as dist
from seen import say

R = nets.init()
out = [None, None]
say(dist.all_gather_object(out, {"rank": R, "text": "x" * R}), out)
things = [{"a": 1}, [2, 3]] if R == 0 else [None, None]
say(dist.broadcast_object_list(things, src=0), things)
got = [None]
say(dist.scatter_object_list(got, ["zero", "one"] if R == 0 else None, src=0), got)
gathered = [None, None] if R == 0 else None
say(dist.gather_object(R * 10, gathered, dst=0), gathered)
if R == 0:
    dist.send_object_list(["sent", 3], dst=1)
else:
    received = [None, None]
    say(dist.recv_object_list(received, src=0), received)
