# how: many
# by-design: wrappers
import seen
import torch
import torch.distributed as dist

for function in (
    torch.save,
    torch.load,
    torch.nn.Module.__call__,
    torch.optim.Optimizer.load_state_dict,
    dist.all_reduce,
):
    seen.say(
        function.__name__, function.__code__.co_filename.rpartition("/")[2], hasattr(function, "__wrapped__")
    )
