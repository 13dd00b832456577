"""Runtime: plans and sessions of programs, and the calls that run them on tensors of PyTorch.

A call looks at sizes, addresses and strides, never at a graph.
"""
