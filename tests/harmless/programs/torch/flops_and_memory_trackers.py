# how: rank
import nets
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker


class Net(nets.Net):
    def forward(self, x):
        return self.b(torch.relu(checkpoint(self.a, x, use_reentrant=False)))


class Names(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self, tracker):
        super().__init__()
        self.tracker, self.seen = tracker, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append((str(function), tuple(sorted(self.tracker.parents)), self.tracker.is_bw))
        return function(*args, **(kwargs or {}))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(24):
    optimizer.zero_grad()
    if step in (2, 4, 20):
        with FlopCounterMode(display=False) as counter:
            model(torch.ones(4, 8)).sum().backward()
        counts = counter.get_flop_counts()
        print(step, {k: {str(o): n for o, n in v.items()} for k, v in sorted(counts.items())})
    elif step in (3, 5, 21):
        with ModuleTracker() as tracker, Names(tracker) as names:
            model(torch.ones(4, 8)).sum().backward()
        print(step, len(names.seen), *names.seen, sep="\n")
    else:
        model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
print(nets.digest(model))
