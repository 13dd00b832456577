"""Graphs that Inductor or eager runs."""

from __future__ import annotations

import torch
from torch._guards import TracingContext, detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import free_symbols

import symmc
from symmc.torch.graphs.nodes import output_of


def in_eager(module: torch.fx.GraphModule):
    """A graph as a function of the list of its inputs, without compilation."""
    return FallbackGraph(module, "eager")


class FallbackGraph:
    """A graph that Inductor compiles, or that runs in eager."""

    def __init__(self, module: torch.fx.GraphModule, how: str):
        self._boxed_call = True
        self.function = None
        module = as_tuple(module)
        if how == "inductor" and not _lacks_symbols(module):
            self.function = _compile_by_inductor(module)
        else:
            self.module = module

    def __call__(self, inputs: list):
        return list(self.module(*inputs) if self.function is None else self.function(list(inputs)))


def _lacks_symbols(module: torch.fx.GraphModule) -> bool:
    """Whether inputs are expressions of sizes that no input has. Inductor cannot compute such inputs."""
    values = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    needed, given = set(), set()
    for value in values:
        if not isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
            continue
        needed |= free_symbols(value)
        sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
        given |= {size.node.expr for size in sizes if isinstance(size, (torch.SymInt, torch.SymFloat))}
    return not needed <= given


class EagerErrorGraph:
    """A graph whose operands have dtypes that PyTorch rejects when it runs, but not when it traces. It runs in eager up to that error."""

    def __init__(self, module: torch.fx.GraphModule, error: symmc.Error):
        self._boxed_call = True
        self.module, self.error = as_tuple(module), error

    def __call__(self, inputs: list):
        self.module(*inputs)
        raise self.error


def _compile_by_inductor(module: torch.fx.GraphModule):
    """A graph of ATen operators compiled by Inductor, after Inductor's own decompositions."""
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes
    from torch._inductor.virtualized import V

    values = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    fake = detect_fake_mode(values) or FakeTensorMode()
    # AOT autograd would take the strides that Inductor reports as those of the whole graph, but this may be a stage.
    with fake, V.set_fake_mode(fake), TracingContext.report_output_strides():
        decomposed = make_fx(torch.fx.Interpreter(module).run, decomposition_table=select_decomp_table())(*values)
        # Unused results, which Inductor has removed at this point.
        decomposed.graph.eliminate_dead_code()
        joint = joint_graph_passes(decomposed)
        end = output_of(joint.graph)
        # All results have the strides that they were traced with.
        end.meta["user_visible_output_idxs"] = list(range(len(end.args[0])))
        return compile_fx_inner(joint, values)


def as_tuple(part: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph with a tuple of results."""
    end = output_of(part.graph)
    returned = end.args[0]
    if not isinstance(returned, (tuple, list)):
        end.args = ((returned,),)
        part.recompile()
    return part
