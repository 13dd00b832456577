"""Capture: from Dynamo, AOT autograd, ``torch.export`` and fx to functional graphs of ATen operators."""
