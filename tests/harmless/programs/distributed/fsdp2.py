# how: ranks
import nets
import torch
import torch.distributed as dist
from seen import say
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

R = nets.init()
for options in (
    {},
    {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)},
    {"reshard_after_forward": False},
    {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
):
    torch.manual_seed(1)
    model = torch.nn.Sequential(nets.Net(), nets.Net())
    for layer in model:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    torch.manual_seed(R)
    for _ in range(6):
        loss = model(torch.randn(4, 8)).float().square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    say(
        loss.item().hex(),
        nets.digest(model),
        nets.of(norm),
        type(model).__name__,
        sorted(n for n in vars(model[0]) if "composable" not in n)[:30],
        len(model._forward_hooks),
        len(model._forward_pre_hooks),
    )
model.unshard()
model.reshard()
del model, optimizer
