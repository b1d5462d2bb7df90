"""Operations of a training step in their order, with the tensors that they touch: what the invariants of a job are inferred from."""
