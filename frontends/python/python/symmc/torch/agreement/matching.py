"""Checks that the collectives that PyTorch runs for several ranks match. If they do not, gloo aborts the process."""

from __future__ import annotations

import math

import torch

from symmc import DisagreementError
from symmc._symmc import evaluate_size
from symmc.torch.graphs.nodes import process_groups_of, source_line
from symmc.torch.ranks import process_groups
from symmc.torch.ranks.exchange import raised_by_all

_ALIKE = {
    "all_reduce": "all have as many elements",
    "all_reduce_coalesced": "all have as many elements",
    "all_gather_into_tensor": "all have as many elements",
    "all_gather_into_tensor_coalesced": "all have as many elements",
    "reduce_scatter_tensor": "all have as many elements",
    "reduce_scatter_tensor_coalesced": "all have as many elements",
    "broadcast": "all have as many elements",
}
"""Collectives whose operands have the same number of elements on all ranks."""


def list_collectives(graph: torch.fx.Graph, sizes: dict[str, int]) -> list[dict]:
    """The collectives of a graph for these values of its symbols, in order. Values that depend on data are ``None``."""
    found = []
    for node in graph.nodes:
        name = _collective(node)
        if name is None:
            continue
        group = next(iter(process_groups_of(node)), None)
        arguments = dict(zip((argument.name for argument in node.target._schema.arguments), node.args)) | node.kwargs
        operands = [_extents(one, sizes) for one in node.all_input_nodes if isinstance(one.meta.get("val"), torch.Tensor)]
        splits = [_numbers(arguments.get(key), sizes) for key in ("input_split_sizes", "output_split_sizes")]
        found.append(
            {
                "name": name,
                "group": [] if group is None else list(process_groups.members_of(group)),
                "operands": operands,
                "splits": splits,
                "op": arguments.get("reduce_op"),
                "line": source_line(node),
            }
        )
    return found


def expect_matching(members: tuple[int, ...], told: list[list[dict]]) -> None:
    """Raises if the collectives of the ranks do not match. All ranks call this with the same collectives, and get the same result."""
    by_rank = dict(zip(members, told))
    groups = dict.fromkeys(tuple(one["group"]) for own in told for one in own)
    for group in groups:
        own = {rank: [one for one in by_rank[rank] if tuple(one["group"]) == group] for rank in group if rank in by_rank}
        (first, expected), *others = own.items() if own else [(None, [])]
        for rank, found in others:
            if len(found) != len(expected):
                counts = f"{len(expected)} on rank {first} and {len(found)} on rank {rank}"
                raise raised_by_all(DisagreementError(f"the number of collectives of the ranks {list(group)} is {counts}"))
        for number in range(len(expected)):
            _expect_one(group, {rank: found[number] for rank, found in own.items()})


def describe_different_sizes(members: tuple[int, ...], told: list[dict[str, int]]) -> str | None:
    """A description of the first size that is not the same on all ranks."""
    for rank, sizes in zip(members, told):
        for name in sizes.keys() & told[0].keys():
            if sizes[name] != told[0][name]:
                found = f"{told[0][name]} on rank {members[0]} and {sizes[name]} on rank {rank}"
                return f"the size {name} is {found}: expected one size on all ranks"
    return None


def _expect_one(group: tuple[int, ...], own: dict[int, dict]) -> None:
    """Raises if the operands of one collective do not match."""
    (first, expected), *others = own.items()
    for rank, found in others:
        for what in ("name", "op"):
            if found[what] != expected[what]:
                raise _differ(first, expected, rank, found, f"{expected[what]}", f"{found[what]}")
        for one, other in zip(expected["operands"], found["operands"]):
            is_counted = expected["name"] in _ALIKE and None not in (one[1], other[1])
            if one[0] != other[0] or (is_counted and math.prod(one[1]) != math.prod(other[1])):
                raise _differ(first, expected, rank, found, _typed(one), _typed(other))
    if expected["name"] == "all_to_all_single" and set(own) == set(group):
        _expect_exchange(group, own)


def _expect_exchange(group: tuple[int, ...], own: dict[int, dict]) -> None:
    """Raises if a rank of an exchange expects other rows than another rank sends to it."""
    sent, taken = {}, {}
    for rank, one in own.items():
        (_, shape), (given, wanted) = one["operands"][0], one["splits"]
        if shape is None or None in (given, wanted):
            return
        row = math.prod(shape[1:])
        even = [shape[0] // len(group)] * len(group)
        for peer, rows, others in zip(group, given or even, wanted or even):
            sent[rank, peer], taken[peer, rank] = rows * row, others * row
    for (sender, receiver), count in sent.items():
        expected = taken.get((sender, receiver))
        if expected != count:
            text = f"rank {sender} sends {count} elements to rank {receiver}, which expects {expected}"
            raise raised_by_all(DisagreementError(f"all_to_all_single{own[sender]['line']}: {text}"))


def _differ(first: int, expected: dict, rank: int, found: dict, one: str, other: str) -> DisagreementError:
    where = f"{expected['name']}{expected['line'] or found['line']}"
    text = f"{where}: rank {first} has {one}, rank {rank} has {other}: expected the same on all ranks of the group"
    error = DisagreementError(text)
    error.culprit = error.rank = rank
    return raised_by_all(error)


def _typed(operand) -> str:
    dtype, shape = operand
    return f"{dtype.removeprefix('torch.')}{'' if shape is None else shape}"


def _collective(node: torch.fx.Node) -> str | None:
    """The name of a collective that a node begins."""
    if node.op != "call_function" or not process_groups_of(node):
        return None
    return node.target._schema.name.split("::")[1].removesuffix("_out").removesuffix("_")


def _extents(node: torch.fx.Node, sizes: dict[str, int]) -> tuple[str, list[int] | None]:
    value = node.meta["val"]
    return str(value.dtype), _numbers(list(value.shape), sizes)


def _numbers(given, sizes: dict[str, int]) -> list[int] | None:
    """Sizes as numbers; None if one of them depends on data."""
    found = [_number(one, sizes) for one in given or ()]
    return None if None in found else found


def _number(size, sizes: dict[str, int]) -> int | None:
    value = size.meta.get("val") if isinstance(size, torch.fx.Node) else size
    if not isinstance(value, torch.SymInt):
        return value if isinstance(value, int) else None
    return evaluate_size(str(value.node.expr), sizes)
