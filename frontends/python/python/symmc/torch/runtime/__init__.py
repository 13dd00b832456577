"""Runtime: plans and sessions of imported graphs, and calls that run them on tensors."""
