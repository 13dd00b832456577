"""Import: turns a legal graph into a program of symmc, through the format of ``torch.export``.

All ranks of a program import together. If a graph does not determine how its sizes are related, relations are assumed that hold in the
call (:class:`symmc._symmc.SizeAssumptions`). Each call checks them.
"""
