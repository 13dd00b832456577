"""Hugging Face models on this machine's GPUs: exported, checked, and timed under torch.compile.

    torchrun --nproc-per-node RANKS models.py measure MODEL OUT SCRATCH TOKENS PEERS CHECKS [SIZES]
    python3 models.py aim SCRATCH TOKENS RANKS
    python3 models.py agreed OUT SCRATCH MODEL RANKS TOKENS
    python3 models.py table OUT

MODEL is `llama` or `qwen3`: the classes of transformers, untouched, in bf16 with random weights. With several ranks each
has a part of the heads and of the intermediate size, and `o_proj` and `down_proj` are followed by a functional
all-reduce. `measure` exports the model with dynamic tokens to OUT, writes weights, ids and what f32 gives to SCRATCH,
and times it at TOKENS (`2,64,512`), from CUDA graphs; JSON lines go to OUT. PEERS are of:

- `whole`: the model as torch.compile takes it, for fixed sizes
- `autotune`: the same in the mode max-autotune-no-cudagraphs, which takes minutes
- `causal`: the layers, embedding and head called without the model's own mask, so that attention is told that it is
  causal; compiled as a whole

CHECKS are the tokens at which results are compared: `aim` gives SCRATCH/tensors.safetensors the ids of so many, `agreed`
says how far what symmc gave is from f32. SIZES are LAYERS,HIDDEN,INTERMEDIATE,HEADS,KEY_HEADS,VOCABULARY. Without a GPU everything
runs on the CPU, which is for trying this script.
"""

import copy
import json
import os
import struct
import sys
import time
import zipfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives

SIZES = "8,4096,14336,32,8,32000"
DIVIDED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# How much further from f32 the results of symmc may be than the model's own, which rounds after each op as well.
FACTOR = 1.25
GPU = torch.cuda.is_available()


class Reduced(torch.nn.Module):
    """A projection of which every rank has a part of the columns."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return collectives.all_reduce(self.inner(x), "sum", dist.group.WORLD)


class Logits(torch.nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, input_ids):
        return self.m(input_ids=input_ids, use_cache=False).logits


class Causal(torch.nn.Module):
    """The same from the model's parts, without a mask."""

    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, input_ids):
        inner = self.m.model
        x = inner.embed_tokens(input_ids)
        at = torch.arange(input_ids.shape[1], device=x.device)[None]
        rotary = inner.rotary_emb(x, position_ids=at)
        for layer in inner.layers:
            x = layer(x, attention_mask=None, position_ids=at, position_embeddings=rotary)
            x = x[0] if isinstance(x, tuple) else x
        return self.m.lm_head(inner.norm(x))


def built(name, sizes, ranks, device):
    """One rank's model, whose weights are not drawn yet."""
    import transformers

    layers, hidden, intermediate, heads, key_heads, vocabulary = sizes
    kind = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}[name]
    config = kind(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate // ranks,
        num_attention_heads=heads // ranks,
        num_key_value_heads=key_heads // ranks,
        head_dim=hidden // heads,
        vocab_size=vocabulary,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
    )
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    if ranks > 1:
        for layer in model.model.layers:
            layer.self_attn.o_proj = Reduced(layer.self_attn.o_proj)
            layer.mlp.down_proj = Reduced(layer.mlp.down_proj)
    return model.eval().requires_grad_(False)


def drawn(model, rank):
    """Names and weights of a rank, which any rank can draw: equal numbers where the weights are not divided."""
    for i, (name, w) in enumerate(model.named_parameters()):
        own = rank if any(part in name for part in DIVIDED) else 0
        generator = torch.Generator(w.device).manual_seed(1000 * own + i)
        numbers = torch.randn(w.shape, generator=generator, device=w.device, dtype=torch.float32)
        yield name, (numbers * 0.02 if w.dim() > 1 else 1 + numbers * 0.1).to(w.dtype)


def stripped(program, out, scratch):
    """Saves a program without the blobs of its weights and samples, which are only sizes here."""
    whole = scratch / "whole.pt2"
    torch.export.save(program, str(whole))
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            if "/data/weights/weight_" not in name and "/data/sample_inputs/" not in name:
                target.writestr(name, source.read(name))
    whole.unlink()


def ids(tokens, vocabulary, device):
    generator = torch.Generator().manual_seed(tokens)
    return torch.randint(1, vocabulary, (1, tokens), generator=generator).to(device)


# The header of a tensor file has room for ids of any number of tokens, which stand behind the weights.
ROOM = 4 << 20


def header(entries):
    text = json.dumps(entries).encode()
    return struct.pack("<Q", ROOM) + text.ljust(ROOM)


def write_weights(model, ranks, path):
    """The weights of all ranks, in the format safetensors."""
    entries, end = {}, 0
    with open(path, "wb") as file:
        file.seek(8 + ROOM)
        for rank in range(ranks):
            for name, w in drawn(model, rank):
                data = w.contiguous().view(torch.uint8).cpu().numpy()
                entries[f"rank{rank}.w.m.{name}"] = {"dtype": "BF16", "shape": list(w.shape), "data_offsets": [end, end + data.size]}
                data.tofile(file)
                end += data.size
        file.seek(0)
        file.write(header(entries))


def aim(path, given, ranks):
    """Makes these ids the arguments of all ranks."""
    with open(path, "r+b") as file:
        (room,) = struct.unpack("<Q", file.read(8))
        entries = {n: e for n, e in json.loads(file.read(room)).items() if ".w." in n}
        end = max(e["data_offsets"][1] for e in entries.values())
        data = given.cpu().numpy()
        for rank in range(ranks):
            entries[f"rank{rank}.in.0"] = {"dtype": "I64", "shape": list(given.shape), "data_offsets": [end, end + data.nbytes]}
            end += data.nbytes
        file.truncate(8 + ROOM + end - ranks * data.nbytes)
        file.seek(0, os.SEEK_END)
        for _ in range(ranks):
            data.tofile(file)
        file.seek(0)
        file.write(header(entries))


def off(found, exact):
    """How far results are from the exact ones: the norm of the difference by that of the result."""
    return float((found.float() - exact).norm() / exact.norm())


def timed(call):
    if GPU:
        from peers import measure

        return measure(call, 3)
    call()
    begin = time.perf_counter()
    call()
    return {"us": (time.perf_counter() - begin) * 1e6}


def compiled(peer, model):
    torch._dynamo.reset()
    module = Causal(model) if peer == "causal" else Logits(model)
    mode = "max-autotune-no-cudagraphs" if peer == "autotune" else None
    return torch.compile(module, mode=mode, dynamic=False)


def measure(name, out, scratch, tokens, peers, checks, sizes):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank) if GPU else torch.device("cpu")
    start = time.perf_counter()

    def say(**what):
        if rank == 0:
            line = json.dumps({"model": name, "ranks": ranks, **what, "at": round(time.perf_counter() - start, 1)})
            with open(out / "models.jsonl", "a") as file:
                print(line, file=file)

    model = built(name, sizes, ranks, device)
    for (_, to), (_, w) in zip(model.named_parameters(), drawn(model, rank)):
        to.copy_(w)
    if rank == 0:
        # Eight tokens, because PyTorch takes an extent of 1 for a constant. Nameless, because some versions cannot show
        # that an extent that is the smallest of several multiples is the same one for all tokens.
        shape = ({1: torch.export.Dim.AUTO(min=2, max=max(4096, *tokens))},)
        program = torch.export.export(Logits(model), (ids(8, sizes[5], device),), dynamic_shapes=shape)
        given = next(n for n in program.graph.nodes if n.name == program.graph_signature.user_inputs[0])
        (out / f"{name}-{ranks}.symbol").write_text(str(given.meta["val"].shape[1]))
        stripped(program, out / f"{name}-{ranks}.pt2", scratch)
        if checks:
            write_weights(model, ranks, scratch / "tensors.safetensors")
        say(what="exported")
    # Ranks other than 0 wait here for the export.
    dist.barrier()
    exact = {}
    if checks:
        wide = copy.deepcopy(model).float()
        for count in checks:
            given = ids(count, sizes[5], device)
            exact[count] = Logits(wide)(given)
            say(what="eager", tokens=count, off=off(Logits(model)(given), exact[count]))
            if rank == 0:
                torch.save({"exact": exact[count].cpu(), "ids": given.cpu()}, scratch / f"check-{count}.pt")
        del wide
    for count in tokens:
        given = ids(count, sizes[5], device)
        for peer in peers:
            call = compiled(peer, model)
            try:
                result = call(given)
                error = off(result, exact[count]) if count in exact else None
                del result
                say(what="timed", peer=peer, tokens=count, off=error, **timed(lambda: call(given)))
            except Exception as failure:  # What a peer cannot do is part of the comparison.
                say(what="failed", peer=peer, tokens=count, why=f"{type(failure).__name__}: {str(failure)[:200]}")


def agreed(out, scratch, name, ranks, count):
    from safetensors import safe_open

    exact = torch.load(scratch / f"check-{count}.pt")["exact"]
    with safe_open(scratch / "found.safetensors", "pt") as file:
        worst = max(off(file.get_tensor(f"rank{rank}.out.0"), exact) for rank in range(ranks))
    line = {"model": name, "ranks": ranks, "what": "symmc", "tokens": count, "off": worst}
    with open(out / "models.jsonl", "a") as file:
        print(json.dumps(line), file=file)


def table(out):
    """Times in microseconds, ratios to each peer, and how far symmc and the model itself are from f32; whether all agree."""
    import re

    text = (out / "models-symmc.txt").read_text() if (out / "models-symmc.txt").exists() else ""
    ours = {(m, int(r), int(t)): float(us) for m, r, t, us in re.findall(r"^(\w+) (\d+) (\d+) .*?: ([0-9.]+) µs", text, re.M)}
    lines = [json.loads(line) for line in (out / "models.jsonl").read_text().splitlines()]
    of = lambda line: (line["model"], line["ranks"], line["tokens"])
    times, errors, fine = {}, {}, True
    for line in lines:
        if line["what"] == "failed":
            print(f"{of(line)}: {line['peer']}: {line['why']}")
        elif "tokens" in line:
            who = line.get("peer", line["what"])
            if "us" in line:
                times.setdefault(of(line), {})[who] = line["us"]
            if line["off"] is not None:
                errors.setdefault(of(line), {})[who] = line["off"]
    peers = list(dict.fromkeys(p for row in times.values() for p in row))
    print("| model, ranks, tokens | symmc | " + " | ".join(f"{p} | ratio" for p in peers) + " | from f32: symmc, eager |")
    print("|---" * (3 + 2 * len(peers)) + "|")
    for row in sorted({*times, *errors}):
        mine, by, error = ours.get(row), times.get(row, {}), errors.get(row, {})
        cells = [number for p in peers for number in both(mine, by.get(p))]
        words = "–"
        if "eager" in error:
            own, found = error["eager"], error.get("symmc")
            good = found is not None and found <= FACTOR * own
            fine &= good
            words = ("none" if found is None else f"{found:.2e}") + f", {own:.2e}" + ("" if good else " TOO FAR")
        print(f"| {row[0]}, {row[1]}, {row[2]} | {both(None, mine)[0]} | " + " | ".join(cells) + f" | {words} |")
    return fine and bool(times)


def both(mine, us):
    """A peer's time, and ours by it."""
    return [f"{us:.0f}" if us else "–", f"{mine / us:.3f}" if us and mine else "–"]


def main():
    part, given = sys.argv[1], sys.argv[2:]
    numbers = lambda text: [int(n) for n in text.split(",") if n]
    if part == "table":
        sys.exit(0 if table(Path(given[0])) else 1)
    if part == "aim":
        known = torch.load(Path(given[0]) / f"check-{given[1]}.pt")
        return aim(Path(given[0]) / "tensors.safetensors", known["ids"], int(given[2]))
    if part == "agreed":
        return agreed(Path(given[0]), Path(given[1]), given[2], int(given[3]), int(given[4]))
    name, out, scratch, tokens, peers, checks = given[:6]
    if GPU:
        torch.cuda.set_device(int(os.environ["RANK"]))
        dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["RANK"])))
    else:
        dist.init_process_group("gloo")
    with torch.no_grad():
        sizes = numbers(given[6] if len(given) > 6 else SIZES)
        measure(name, Path(out), Path(scratch), numbers(tokens), peers.split(","), numbers(checks), sizes)
    if GPU:
        torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
