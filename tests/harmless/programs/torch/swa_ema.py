# how: many
import nets
import torch
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

model = torch.nn.Sequential(nets.Net(), torch.nn.BatchNorm1d(8))
averaged, ema = AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
_, optimizer = nets.train(model, 1)
scheduler = SWALR(optimizer, 0.01)
for _ in range(6):
    nets.train(model, 1, optimizer)
    averaged.update_parameters(model)
    ema.update_parameters(model)
    scheduler.step()
update_bn([torch.randn(4, 8) for _ in range(3)], averaged)
print(nets.digest(model), nets.digest(averaged), nets.digest(ema))
