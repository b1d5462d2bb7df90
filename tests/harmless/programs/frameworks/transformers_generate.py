# how: rank
# needs: transformers
# slow
import os

os.environ["HF_HUB_OFFLINE"] = "1"
import nets
import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=40, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1)
).eval()
print(
    model.generate(torch.tensor([[2, 3]]), max_new_tokens=8, do_sample=True, pad_token_id=1).tolist(),
    nets.draws(),
)
