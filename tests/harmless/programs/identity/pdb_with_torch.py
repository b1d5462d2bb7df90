# how: rank
# alone
import io
import pdb

import nets
import torch

model = nets.Net()
_, optimizer = nets.train(model, 70)


def step(x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


commands = ["n", "n", "n", "p loss.item() > 0", "w", "c"]
said = io.StringIO()
debugger = pdb.Pdb(stdin=io.StringIO("\n".join([*commands, ""])), stdout=said, nosigint=True, readrc=False)
debugger.runcall(step, torch.ones(2, 8))
print(said.getvalue())
commands = ["b nets.Net.forward", "c", "p x.shape", "n", "u", "p sorted(locals())[:3]", "cl 1", "c"]
said = io.StringIO()
debugger = pdb.Pdb(stdin=io.StringIO("\n".join([*commands, ""])), stdout=said, nosigint=True, readrc=False)
debugger.runcall(step, torch.ones(2, 8))
print(said.getvalue())
