"""Two ranks generate and exchange what they made; one of them has much longer prompts. There is no optimizer, and no step.

On plain torchrun: nothing; the job takes three times as long as it could.

Promise:
  launch: torchrun --standalone --nproc-per-node 2
  outcome: slow
  class: straggler_rank
  guilty_ranks: [1]
  code: ["prompt = torch.tanh(prompt @ weight)", "made = generate("]
"""

import torch
import torch.distributed as dist


def generate(weight: torch.Tensor, prompt: torch.Tensor, count: int) -> torch.Tensor:
    for _ in range(count):
        prompt = torch.tanh(prompt @ weight)
    return prompt


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    weight = torch.randn(512, 512) / 16
    for _batch in range(60):
        made = generate(weight, torch.randn(64, 512), 300 if dist.get_rank() == 1 else 20)
        everyone = [torch.empty_like(made) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, made)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
