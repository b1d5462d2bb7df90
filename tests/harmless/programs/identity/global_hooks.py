# how: many
# by-design: hooks
import seen
import torch
import torch.optim.optimizer as optimizer
from torch.nn.modules import module

for owner in (module, optimizer):
    seen.say(
        {
            n: len(v)
            for n, v in sorted(vars(owner).items())
            if n.startswith("_global") and hasattr(v, "__len__")
        }
    )
seen.say(
    torch.autograd.graph.saved_tensors_hooks.__name__,
    torch._C._autograd._top_saved_tensors_default_hooks(False),
)
