# how: shell
# needs: accelerate
# slow
# line: accelerate launch --cpu --num_processes 1 --num_machines 1 --mixed_precision no --dynamo_backend no train.py
import nets
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = nets.Net()
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
print(nets.train(model, 4, optimizer, torch.ones(4, 8))[0], nets.digest(accelerator.unwrap_model(model)))
