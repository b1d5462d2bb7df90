# how: many
# by-design: calls
import inspect

import nets
import seen
from torch import nn

nets.train(nets.Net(), 80)
seen.say(
    seen.digest(inspect.getsource(nets.Net)),
    inspect.signature(nets.Net),
    inspect.signature(nets.Net.forward),
    inspect.signature(nets.Net()),
)
seen.say(
    [c.__name__ for c in inspect.getmro(nets.Net)],
    sorted(vars(nets.Net)),
    seen.digest(inspect.getsource(nn.Module.__call__)),
)
seen.say(
    inspect.signature(nn.Module.__call__),
    inspect.signature(nn.Linear(2, 2)),
    inspect.unwrap(nn.Module.__call__) is nn.Module.__call__,
)
