# how: many
import nets
import torch

torch.use_deterministic_algorithms(True, warn_only=False)
print(torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
print(nets.train(nets.Net(), 6)[0])
torch.use_deterministic_algorithms(False)
print(
    torch.get_default_dtype(),
    torch.get_num_threads(),
    torch.get_float32_matmul_precision(),
    torch.is_grad_enabled(),
    torch.is_anomaly_enabled(),
)
print(
    torch.backends.mkldnn.enabled,
    torch.is_autocast_enabled("cpu"),
    torch.get_autocast_dtype("cpu"),
    torch.is_warn_always_enabled(),
    torch.get_default_device(),
)
torch.set_default_dtype(torch.float64)
print(nets.train(nets.Net(), 2, x=torch.ones(8, 8))[0])
torch.set_default_dtype(torch.float32)
