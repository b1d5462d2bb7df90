# how: many
import warnings

import nets
import torch

model = nets.Net()
with warnings.catch_warnings(record=True) as caught, torch.autograd.detect_anomaly():
    warnings.simplefilter("always")
    nets.train(model, 2)
    try:
        (model(torch.ones(2, 8)).sum() * torch.zeros(1, requires_grad=True).sqrt() * 0).backward()
    except RuntimeError as error:
        print(str(error)[:120])
print([str(w.message).partition("\n")[0][:100] for w in caught], [(w.lineno > 0) for w in caught])
print(
    [
        line.strip()
        for w in caught
        for line in str(w.message).splitlines()
        if "File" in line and "nsadiag" in line
    ]
)
