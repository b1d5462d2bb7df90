# how: many
import seen
import torch

seen.surface(torch.optim.Optimizer)
for name in ("SGD", "Adam", "AdamW", "LBFGS", "RMSprop"):
    seen.surface(getattr(torch.optim, name))
seen.surface(torch.amp.GradScaler)
