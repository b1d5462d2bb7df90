# how: ranks
import nets
import torch
import torch.distributed as dist
from seen import say
from torch.nn.parallel import DistributedDataParallel as DDP

R = nets.init()
for options in (
    {},
    {"find_unused_parameters": True},
    {"static_graph": True},
    {"gradient_as_bucket_view": True},
    {"bucket_cap_mb": 0.0001},
    {"broadcast_buffers": False},
):
    torch.manual_seed(1)
    model = DDP(nets.Net(), **options)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    torch.manual_seed(R)
    for n in range(8):
        if n % 2 and not options:
            with model.no_sync():
                model(torch.randn(4, 8)).sum().backward()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    say(options, loss.item().hex(), nets.digest(model.module), [p.grad is None for p in model.parameters()])
say(
    sorted(vars(model))[:100],
    type(model.reducer).__name__,
    model._get_ddp_logging_data()["num_parameter_tensors"],
)
del model
