# how: many
import nets
import torch

model = nets.Net()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
for n in range(12):
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(4, 8)).float().mean() * (float("inf") if n == 5 else 1.0)
    scaler.scale(loss).backward()
    if n % 2:
        scaler.unscale_(optimizer)
        print(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item().hex())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
print(nets.digest(model), scaler.get_scale(), scaler.state_dict(), type(scaler).__name__)
