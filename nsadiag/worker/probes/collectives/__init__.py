"""Calls into torch.distributed, and what DDP and FSDP issue by themselves."""
