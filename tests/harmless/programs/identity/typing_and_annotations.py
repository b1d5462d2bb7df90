# how: many
import typing

import seen
import torch

for function in (
    torch.save,
    torch.load,
    torch.nn.Module.__call__,
    torch.nn.Module.register_forward_hook,
    torch.optim.Optimizer.add_param_group,
):
    try:
        seen.say(function.__name__, sorted(typing.get_type_hints(function)))
    except Exception as error:
        seen.say(function.__name__, type(error).__name__, error)
    seen.say(sorted(function.__annotations__), function.__name__)
