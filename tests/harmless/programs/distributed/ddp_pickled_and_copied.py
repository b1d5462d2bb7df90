# how: ranks
import copy
import io
import pickle
import weakref

import nets
import seen
import torch
from torch.nn.parallel import DistributedDataParallel

nets.init()
torch.manual_seed(0)
model = DistributedDataParallel(nets.Net())
nets.train(model, 5, x=torch.ones(8))
for how in ("before", "after"):
    data = pickle.dumps(model)
    seen.say(how, b"nsadiag" in data)
    again = pickle.loads(data)
    seen.say(nets.train(again, 2, x=torch.ones(8))[0], nets.digest(again))
    other = copy.deepcopy(model)
    seen.say(nets.train(other, 2, x=torch.ones(8))[0], nets.digest(other))
    buffer = io.BytesIO()
    torch.save(model, buffer)
    seen.say(b"nsadiag" in buffer.getvalue(), len(buffer.getvalue()))
    buffer.seek(0)
    whole = torch.load(buffer, weights_only=False)
    seen.say(type(whole).__name__, nets.digest(whole))
    del again, other, whole
    nets.train(model, 20, x=torch.ones(8))
gone = weakref.ref(model)
del model
import gc

gc.collect()
seen.say(gone() is None)
