"""Forward and backward: module calls, gradients, the graph."""
