"""Exports tensor-parallel layers as PyTorch writes them, in bf16 and without weights.

    python3 export_layers.py RANKS mlp OUT.pt2 [LAYERS HIDDEN INTERMEDIATE]
    python3 export_layers.py RANKS prefill OUT.pt2 [LAYERS HIDDEN HEADS KEY_HEADS INTERMEDIATE]
    python3 export_layers.py RANKS decode OUT.pt2 [LAYERS HIDDEN HEADS KEY_HEADS INTERMEDIATE POSITIONS]

The layers are those of layers.py. The number of tokens is dynamic; with `decode`, each has a cache of so many
positions (2048 unless given), an input. Needs no GPU: the process group is PyTorch's fake one.
"""

import sys
import tempfile
import zipfile

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import layers


def write(program, out):
    """Saves a program without the blobs of its weights and samples, which are only sizes here."""
    with tempfile.NamedTemporaryFile(suffix=".pt2") as whole:
        torch.export.save(program, whole.name)
        with zipfile.ZipFile(whole.name) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
            for name in source.namelist():
                if "/data/weights/weight_" not in name and "/data/sample_inputs/" not in name:
                    target.writestr(name, source.read(name))


def main():
    ranks, what, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    sizes = [int(a) for a in sys.argv[4:]]
    positions = sizes.pop() if len(sizes) == 6 else 2048
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    with torch.device("meta"):
        model = {"mlp": layers.mlp, "prefill": layers.decoder, "decode": layers.decoder}[what](ranks, *sizes)
    model = model.to(torch.bfloat16).to_empty(device="cpu").requires_grad_(False)
    hidden = (sizes[1:2] or [4096])[0]
    # Eight tokens, because PyTorch takes an extent of 1 for a constant.
    x = torch.zeros(8, hidden, dtype=torch.bfloat16)
    caches = layers.caches(model, 8, positions, dtype=torch.bfloat16) if what == "decode" else ()
    tokens = torch.export.Dim("tokens", min=1, max=256 if caches else 8192)
    rows = {0: tokens}
    dynamic = (rows, (rows,) * len(caches)) if caches else (rows,)
    with torch.no_grad():
        program = torch.export.export(model, (x, *caches), dynamic_shapes=dynamic)
    write(program, out)
    dist.destroy_process_group()


main()
