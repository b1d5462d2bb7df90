# how: rank
# unordered
import os
import sys

import nets
import torch

model = nets.Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
left = {"forward": [3, 20], "gradient": [5], "step": [7, 17]}
now = 0


def fork(where):
    if now not in left[where]:
        return
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        # It trains on as a process of its own, as a forked evaluation does.
        left.update(forward=[], gradient=[], step=[])
        with torch.enable_grad():
            other = nets.Net()
            other.load_state_dict(model.state_dict())
            print(where, now, nets.digest(other), nets.train(other, 3, x=torch.ones(8, 8))[0])
        sys.stdout.flush()
        os._exit(now)
    print("ended", where, now, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


model.a.register_forward_hook(lambda *_: fork("forward"))
model.b.weight.register_hook(lambda gradient: fork("gradient"))
optimizer.register_step_post_hook(lambda *_: fork("step"))
for now in range(24):
    optimizer.zero_grad()
    model(torch.ones(8, 8) * now).square().mean().backward()
    optimizer.step()
print(nets.digest(model))
