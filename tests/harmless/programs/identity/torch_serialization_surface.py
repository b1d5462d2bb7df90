# how: many
import seen
import torch

seen.surface(torch.serialization)
seen.surface(
    torch.Tensor,
    [
        "backward",
        "register_hook",
        "register_post_accumulate_grad_hook",
        "__reduce_ex__",
        "__deepcopy__",
        "item",
        "cpu",
        "to",
    ],
)
