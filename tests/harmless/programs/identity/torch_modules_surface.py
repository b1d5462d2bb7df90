# how: many
import seen
from torch import nn

for name in sorted(n for n in dir(nn) if isinstance(getattr(nn, n), type)):
    kind = getattr(nn, name)
    seen.say(name, sorted(k for k in vars(kind) if callable(vars(kind)[k])))
seen.surface(nn.Linear)
seen.surface(nn.parallel.DistributedDataParallel)
