# how: many
import torch
import torch._dynamo as dynamo

print(
    dynamo.config.get_config_copy() == dynamo.config.get_config_copy(),
    torch.compiler.is_compiling(),
    sorted(dynamo.list_backends()),
)
print(dynamo.config.cache_size_limit, dynamo.config.suppress_errors, len(dynamo.config.get_hash().hex()))
