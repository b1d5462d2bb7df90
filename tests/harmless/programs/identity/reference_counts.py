# how: many
import gc
import sys

import nets
import seen

model = nets.Net()
_, optimizer = nets.train(model, 80)
seen.say(
    sys.getrefcount(model),
    sys.getrefcount(optimizer),
    [sys.getrefcount(p) for p in model.parameters()],
    [sys.getrefcount(m) for m in model.modules()],
)
seen.say(len([r for r in gc.get_referrers(model) if type(r) is dict]))
