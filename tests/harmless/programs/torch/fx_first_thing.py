# how: many
import nets
import torch.fx

print(torch.fx.symbolic_trace(nets.Net()).graph)
print(torch.fx.symbolic_trace(nets.Net()).code)
