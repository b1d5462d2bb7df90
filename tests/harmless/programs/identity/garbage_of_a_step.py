# how: many
import gc

import nets
import seen
import torch

model = nets.Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
nets.train(model, 300, optimizer)
torch.save({}, "x.pt")
gc.collect()
before = len(gc.get_objects())
gc.set_debug(gc.DEBUG_SAVEALL)
for n in range(100):
    nets.train(model, 1, optimizer)
    try:
        torch.load("nowhere")
    except FileNotFoundError:
        pass
gc.collect()
gc.set_debug(0)
seen.say(sorted({type(o).__name__ for o in gc.garbage}))
gc.garbage.clear()
gc.collect()
seen.say(len(gc.get_objects()) - before < 40)
