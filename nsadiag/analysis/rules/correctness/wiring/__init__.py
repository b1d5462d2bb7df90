"""Gradients, targets and states that go to the wrong place on every rank: cut off, weighed wrongly, numbered wrongly, or left behind."""
