# how: ranks
import nets
import torch
import torch.distributed as dist
from seen import say
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

R = nets.init()
for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.NO_SHARD):
    torch.manual_seed(1)
    try:
        model = FSDP(
            torch.nn.Sequential(nets.Net(), nets.Net()),
            auto_wrap_policy=ModuleWrapPolicy({nets.Net}),
            sharding_strategy=strategy,
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
        say(nets.train(model, 4, x=torch.ones(4, 8) * (R + 1))[0])
        with FSDP.summon_full_params(model):
            say([nets.of(p) for p in model.parameters()])
        model.clip_grad_norm_(1.0)
    except Exception as error:
        say(type(error).__name__, str(error)[:200].replace("\n", " "))
model = None
