"""Exports tensor-parallel MLP layers as PyTorch writes them, without weights.

    python3 export_mlp.py RANKS OUT.pt2 [LAYERS HIDDEN INTERMEDIATE]

Each layer is gate, up and down projections in bf16, cut over the ranks, an all-reduce and the residual. The number
of tokens is dynamic. Needs no GPU: the process group is PyTorch's fake one.
"""

import sys
import tempfile
import zipfile

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch.testing._internal.distributed.fake_pg import FakeStore


class Layer(torch.nn.Module):
    def __init__(self, hidden, intermediate, ranks):
        super().__init__()
        piece = intermediate // ranks
        self.gate = torch.nn.Linear(hidden, piece, bias=False)
        self.up = torch.nn.Linear(hidden, piece, bias=False)
        self.down = torch.nn.Linear(piece, hidden, bias=False)

    def forward(self, x):
        y = self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))
        return x + collectives.all_reduce(y, "sum", dist.group.WORLD)


def main():
    ranks, out = int(sys.argv[1]), sys.argv[2]
    layers, hidden, intermediate = (int(a) for a in (sys.argv[3:6] or (4, 4096, 14336)))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    with torch.device("meta"):
        model = torch.nn.Sequential(*[Layer(hidden, intermediate, ranks) for _ in range(layers)])
    model = model.to(torch.bfloat16).to_empty(device="cpu").requires_grad_(False)
    tokens = torch.export.Dim("tokens", min=1, max=8192)
    x = torch.zeros(8, hidden, dtype=torch.bfloat16)
    with torch.no_grad():
        program = torch.export.export(model, (x,), dynamic_shapes=({0: tokens},))
    with tempfile.NamedTemporaryFile(suffix=".pt2") as whole:
        torch.export.save(program, whole.name)
        # The blobs are only sizes here.
        with zipfile.ZipFile(whole.name) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
            for name in source.namelist():
                blob = "/data/weights/weight_" in name
                if not blob and "/data/sample_inputs/" not in name:
                    target.writestr(name, source.read(name))
    dist.destroy_process_group()


main()
