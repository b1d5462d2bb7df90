# how: many
import nets
import torch
from torch.optim import lr_scheduler

model = nets.Net()
optimizer = torch.optim.SGD([{"params": model.a.parameters(), "lr": 0.1}], lr=0.01, momentum=0.9)
optimizer.add_param_group({"params": list(model.b.parameters()), "weight_decay": 0.1})
scheduler = lr_scheduler.SequentialLR(
    optimizer,
    [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(optimizer, 10)],
    [3],
)
for _ in range(12):
    nets.train(model, 1, optimizer)
    scheduler.step()
print([g["lr"] for g in optimizer.param_groups], scheduler.state_dict().keys(), nets.digest(model), optimizer)
plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
for loss in (1.0, 2.0, 3.0):
    plateau.step(loss)
print([g["lr"] for g in optimizer.param_groups], type(optimizer.step).__name__, optimizer.step.__name__)
