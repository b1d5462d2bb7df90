# how: many
import functools
import os

import seen
import torch

bound = functools.partial(torch.save, {"x": 1})
bound("x.pt")
seen.say(bound.func is torch.save, torch.load("x.pt"), functools.partial(os.kill, os.getpid())(0))
seen.say(functools.singledispatch(print).__name__, functools.lru_cache(torch.load).__name__)
