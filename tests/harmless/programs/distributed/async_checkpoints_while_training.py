# how: torchrun
import os
import shutil

import nets
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from seen import say
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group("cpu:gloo")
R = dist.get_rank()
model = nets.Net()
fully_shard(model.a)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
kinds = [None]
if hasattr(checkpoint.state_dict_saver, "AsyncCheckpointerType"):
    kinds = list(checkpoint.state_dict_saver.AsyncCheckpointerType)
for kind in kinds:
    pending = None
    for step in range(6):
        nets.train(model, 1, optimizer, x=torch.ones(2, 8) * (R + 1))
        if pending is not None:
            pending.result()
        weights, state = get_state_dict(model, optimizer)
        options = {} if kind is None else {"async_checkpointer_type": kind}
        pending = checkpoint.async_save(
            {"model": weights, "optimizer": state}, checkpoint_id=f"ck-{step}", **options
        )
    pending.result()
    dist.barrier()
    weights, state = get_state_dict(model, optimizer)
    held = {"model": weights, "optimizer": state}
    checkpoint.load(held, checkpoint_id="ck-2")
    set_state_dict(model, optimizer, model_state_dict=held["model"], optim_state_dict=held["optimizer"])
    say(str(kind), nets.train(model, 2, optimizer, x=torch.ones(2, 8))[0], nets.digest(model))
    dist.barrier()
    if R == 0:
        say(sorted(os.listdir("ck-5")))
        for step in range(6):
            shutil.rmtree(f"ck-{step}")
dist.destroy_process_group()
