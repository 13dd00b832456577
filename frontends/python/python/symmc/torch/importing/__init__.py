"""Import: turns a legal graph into a program of symmc, through the format of ``torch.export``.

All ranks of a program import together. Sizes of which a graph says too little are assumed to be what they are in the call; what was assumed is
checked in each call.
"""
