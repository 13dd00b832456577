"""symmc under PyTorch: ``torch.compile(model, backend="symmc")``, and process groups as groups of sessions."""

from symmc.torch._backend import backend
from symmc.torch._ranks import group_of

__all__ = ["backend", "group_of"]
