"""Captures from GPUs and NVIDIA's tools: their state, NCCL's own account, a core dump."""
