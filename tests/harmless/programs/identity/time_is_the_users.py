# how: rank
import json
import time
from unittest import mock

import nets
import torch

model = nets.Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    nets.train(model, 1, optimizer)
    for name in ("monotonic", "time", "perf_counter", "time_ns", "monotonic_ns", "process_time_ns", "sleep"):
        with mock.patch(f"time.{name}", side_effect=[0]) as clock:
            nets.train(model, 1, optimizer)
            torch.save({}, "x.pt")
            print(name, clock.call_count)
        with mock.patch(f"time.{name}", side_effect=RuntimeError("no time")):
            nets.train(model, 1, optimizer)
            torch.save({}, "x.pt")
print(nets.digest(model), time.time() > 0, json.dumps({}))
