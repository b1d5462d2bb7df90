# how: many
import collections
import gc

import nets
import seen
import torch

model = nets.Net()
_, optimizer = nets.train(model, 70)
phases = collections.Counter()


def collected(phase, told):
    phases[phase, told["generation"]] += 1


gc.collect()
gc.callbacks.append(collected)
gc.freeze()
nets.train(model, 30, optimizer)
seen.say(gc.isenabled(), gc.get_threshold(), gc.collect() >= 0)
gc.unfreeze()
gc.callbacks.remove(collected)
seen.say(phases["start", 2] == phases["stop", 2], gc.get_debug(), gc.garbage)
parameter = model.a.weight
for thing in (model, parameter, optimizer, model.a):
    referrers = [type(r).__name__ for r in gc.get_referrers(thing) if r is not globals()]
    seen.say(
        type(thing).__name__,
        sorted(name for name in referrers if name not in ("list", "frame", "tuple_iterator")),
    )
seen.say(sorted(vars(model)), sorted(vars(model.a)), sorted(vars(parameter)))
seen.say([o for o in gc.get_objects() if type(o) is nets.Net] == [model])
gc.disable()
losses = [nets.train(model, 1, optimizer)[1] for _ in range(20)]
seen.say(gc.collect() >= 0, gc.isenabled(), nets.digest(model))
gc.enable()
