# how: many
import nets
import torch

model = nets.Net()
_, optimizer = nets.train(model, 80)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as profile:
    nets.train(model, 3, optimizer)
names = {e.name for e in profile.events()}
print(
    sorted(
        n.rpartition("/")[2]
        for n in names
        if "nsadiag" not in n and n.partition("(")[0].endswith(("nets.py", "module.py", "linear.py"))
    )
)
