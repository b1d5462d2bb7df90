# how: many
# by-design: calls
import nets
import seen
from torch import nn

model = nn.Linear(8, 8)
for _ in range(80):
    nets.train(model, 1)
nets.train(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nets.Net()), 80)
for name in sorted(n for n in dir(nn) if isinstance(getattr(nn, n), type)):
    kind = getattr(nn, name)
    seen.say(name, sorted(k for k in vars(kind) if callable(vars(kind)[k])))
seen.surface(nn.Linear)
seen.surface(nn.Sequential)
seen.say(sorted(vars(nets.Net)))
