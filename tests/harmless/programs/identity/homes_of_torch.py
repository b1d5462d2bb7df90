# how: many
import seen
import torch
import torch.serialization

seen.say(torch.save is torch.serialization.save, torch.load is torch.serialization.load)
seen.say(torch.autograd.backward is torch.autograd.__dict__["backward"], torch._tensor.Tensor is torch.Tensor)
seen.say(
    torch.nn.Module is torch.nn.modules.Module,
    torch.nn.Module.__call__ is torch.nn.modules.module.Module.__call__,
)
seen.say(
    torch.nn.Module.__call__ is torch.nn.Module._wrapped_call_impl,
    torch.nn.Linear.__call__ is torch.nn.Module.__call__,
)
