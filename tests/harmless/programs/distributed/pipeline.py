# how: ranks
import nets
import torch
import torch.distributed as dist
from seen import say
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

R = nets.init()
torch.manual_seed(R)
stage_model = nets.Net()
stage = PipelineStage(stage_model, R, 2, torch.device("cpu"))
schedule = ScheduleGPipe(stage, 2, loss_fn=torch.nn.functional.mse_loss)
for _ in range(3):
    losses = []
    if R == 0:
        schedule.step(torch.ones(4, 8))
    else:
        schedule.step(target=torch.zeros(4, 8), losses=losses)
    say([loss.item().hex() for loss in losses], [nets.of(p.grad) for p in stage_model.parameters()])
dist.barrier()
