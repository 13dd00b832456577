"""Import: from a graph to a program of symmc, through the format of ``torch.export``."""
