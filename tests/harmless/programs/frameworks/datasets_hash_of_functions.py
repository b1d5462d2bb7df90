# how: many
# needs: datasets
import os

import nets
import torch
from datasets.fingerprint import Hasher

nets.train(nets.Net(), 40)
for thing in (
    len,
    print,
    os.kill,
    torch.save,
    torch.load,
    torch.nn.Linear,
    torch.nn.functional.relu,
    lambda x: print(x),
    nets.Net,
):
    try:
        print(getattr(thing, "__name__", "?"), Hasher.hash(thing))
    except Exception as error:
        print(thing, type(error).__name__)
