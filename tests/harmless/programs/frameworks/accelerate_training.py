# how: torchrun
# needs: accelerate
import nets
import torch
from accelerate import Accelerator
from seen import say
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
data = DataLoader(TensorDataset(torch.randn(32, 8)), 4, shuffle=True)
model = nets.Net()
model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2), data)
for _ in range(2):
    for (x,) in data:
        with accelerator.accumulate(model):
            loss = model(x).square().mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
say(
    loss.item().hex(),
    nets.digest(accelerator.unwrap_model(model)),
    accelerator.gather(loss.detach()).tolist(),
)
accelerator.wait_for_everyone()
accelerator.save_state("ck")
accelerator.wait_for_everyone()
accelerator.load_state("ck")
accelerator.print("main only")
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    __import__("shutil").rmtree("ck")
accelerator.end_training()
