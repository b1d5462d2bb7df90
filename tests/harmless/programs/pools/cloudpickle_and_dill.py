# how: many
# needs: cloudpickle dill
import os
import sys

import cloudpickle
import dill
import nets
import seen
import torch
import torch.distributed as dist

model = nets.Net()
nets.train(model, 40)
for thing in (
    os.kill,
    sys.exit,
    print,
    torch.save,
    torch.load,
    dist.all_reduce,
    lambda x: torch.save(x, "y"),
    nets.Net,
    torch.nn.Linear,
    model,
):
    for library in (cloudpickle, dill):
        try:
            data = library.dumps(thing)
            seen.say(
                getattr(thing, "__name__", type(thing).__name__),
                library.__name__,
                seen.size(data),
                library.loads(data) is thing,
            )
        except Exception as error:
            seen.say(
                getattr(thing, "__name__", type(thing).__name__),
                library.__name__,
                type(error).__name__,
                error,
            )
