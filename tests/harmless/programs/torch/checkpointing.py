# how: many
import nets
import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_debug_enabled

model = torch.nn.Sequential(*[nets.Net() for _ in range(4)], torch.nn.Dropout(0.3))
for reentrant in (True, False):
    for _ in range(4):
        x = torch.randn(4, 8, requires_grad=True)
        checkpoint(model, x, use_reentrant=reentrant).sum().backward()
        checkpoint_sequential(model, 2, x, use_reentrant=reentrant).sum().backward()
    print([nets.of(p.grad) for p in model.parameters()][:3], nets.draws())
with set_checkpoint_debug_enabled(True):
    checkpoint(model, x, use_reentrant=False, determinism_check="default").sum().backward()
flip = [0]


def unlike(y):
    flip[0] += 1
    return model[0](y) if flip[0] % 2 else model[1](model[0](y))


try:
    checkpoint(unlike, x, use_reentrant=False).sum().backward()
except Exception as error:
    print(type(error).__name__, str(error)[:200])
