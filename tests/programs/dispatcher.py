"""Custom ops that send rows of tokens to the ranks of their experts and back, as dispatchers of training code register
them: without written arguments, with integers, an optional tensor and the name of a group, and with static sizes.
`experts/dispatch.symm` and the files next to it define them."""

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group


def _gathered(x, group):
    parts = [torch.empty_like(x) for _ in range(group.size())]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.stack(parts)


@torch.library.custom_op("minimal_ep::dispatch", mutates_args=())
def dispatch(x: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor, receive_capacity: int, ep_size: int,
             buffer_set: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The rows of this rank's experts, by expert, source rank and slot; the rank and the row of each slot; and the
    rows of each local expert."""
    group = dist.group.WORLD
    experts = counts.shape[0]
    local = experts // ep_size
    tokens, slots = _gathered(x, group).flatten(0, 1), _gathered(ids, group).flatten()
    ranks, rows = torch.empty_like(slots), torch.empty_like(slots)
    mine, arriving = torch.zeros(receive_capacity, x.shape[1], dtype=x.dtype), torch.zeros(local, dtype=torch.int64)
    for rank in range(ep_size):
        row = 0
        for expert in range(rank * local, (rank + 1) * local):
            for slot in (slots == expert).nonzero().flatten().tolist():
                ranks[slot], rows[slot] = rank, row
                if rank == group.rank():
                    mine[row] = tokens[slot // ids.shape[1]]
                    arriving[expert - rank * local] += 1
                row += 1
    own = slice(group.rank() * ids.numel(), (group.rank() + 1) * ids.numel())
    return mine, ranks[own].clone(), rows[own].clone(), arriving


@dispatch.register_fake
def _(x, ids, counts, receive_capacity, ep_size, buffer_set=0):
    place = ids.new_empty(ids.numel())
    rows = x.new_empty(receive_capacity, x.shape[1])
    return rows, place, torch.empty_like(place), ids.new_empty(counts.shape[0] // ep_size)


@torch.library.custom_op("minimal_ep::combine", mutates_args=())
def combine(y: torch.Tensor, dst_ranks: torch.Tensor, dst_rows: torch.Tensor, scores: torch.Tensor | None,
            num_tokens: int, top_k: int, group_name: str) -> torch.Tensor:
    """The sum of the results of each token, with its scores if there are any."""
    found = _gathered(y, _resolve_process_group(group_name))[dst_ranks, dst_rows].view(num_tokens, top_k, -1)
    return (found if scores is None else found * scores.unsqueeze(-1)).sum(1)


@combine.register_fake
def _(y, dst_ranks, dst_rows, scores, num_tokens, top_k, group_name):
    return y.new_empty(num_tokens, y.shape[1])
