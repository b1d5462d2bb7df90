# how: many
import os

import nets
import torch

model = nets.Net()
_, optimizer = nets.train(model, 80)
with torch.profiler.profile(
    activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, with_modules=True
) as profile:
    nets.train(model, 3, optimizer)
rows = {e.key: e.count for e in profile.key_averages()}
print(sorted(rows.items()))
profile.export_chrome_trace("trace.json")
os.unlink("trace.json")
with torch.autograd.profiler.record_function("mine"):
    pass
