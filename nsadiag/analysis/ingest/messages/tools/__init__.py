"""Answers of tools that people ask, several lines each: DeepSpeed's summary, NCCL's RAS, debuggers."""
