#!/usr/bin/env python3
"""Exports a small tensor-parallel decoder as two programs, with its weights and the text that it generates.

    python3 export.py OUT

The model is `LlamaForCausalLM` of transformers with unchanged modelling code. Its tokens are the bytes of ASCII text. It is
trained on the sentences of TEXT, so that its output is readable and the most likely token is clearly ahead. Each of RANKS
ranks has a part of its heads, of its intermediate size and of its vocabulary: functional all-reduces follow `o_proj`
and `down_proj`, an all-gather follows `lm_head`. The folder OUT receives:

- `prefill.pt2`: the prompt, of any number of tokens up to the positions of the cache
- `decode.pt2`: one token
- `model.safetensors`: `rank{r}.w.PARAMETER` of both programs, and `rank{r}.in.I` and `rank{r}.out.I` of the prompt
- `prompt.txt` and `generated.txt`: the prompt, and the next TOKENS tokens by `generate` of transformers

Both programs take `input_ids` i64[1, tokens], `cache_position` i64[1] (the position of the first of these tokens in the
cache) and the static cache `cache_I`, keys and values of each layer in turn, which they change in place. They return the
most likely next token, i64[1, 1], which is the next input of `decode`. Two processes that gloo connects run both programs in
PyTorch, and must write the text of `generate`. Needs no GPU; written for PyTorch 2.15 and transformers 5.17.
"""

import argparse
import io
import json
import os
import pathlib
import tempfile
import warnings
import zipfile

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.multiprocessing
import transformers
from safetensors.torch import load_file, save_file

SEED, RANKS, TOKENS, POSITIONS, STEPS = 5, 2, 64, 128, 400
PROMPT = "A collective "
TEXT = """\
A collective moves data between ranks. It is faster where its operands lie in symmetric memory, which every rank can \
reach. symmc places them there by itself, ahead of time, and proves that no two ranks race.
"""
# The configuration that all ranks share.
SIZES = dict(num_attention_heads=4, num_key_value_heads=2, intermediate_size=128)
COMMON = dict(
    vocab_size=128,
    hidden_size=64,
    head_dim=16,
    num_hidden_layers=2,
    max_position_embeddings=512,
    tie_word_embeddings=False,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=0,
)
# The axis along which the weights of a projection are divided: its rows or its columns.
DIVIDED = dict(q_proj=0, k_proj=0, v_proj=0, gate_proj=0, up_proj=0, lm_head=0, o_proj=1, down_proj=1)


class Reduced(torch.nn.Module):
    """A projection whose columns are divided among the ranks."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return collectives.all_reduce(self.inner(x), "sum", dist.group.WORLD)


class Gathered(torch.nn.Module):
    """A projection whose rows are divided among the ranks."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return collectives.all_gather_tensor(self.inner(x), x.dim() - 1, dist.group.WORLD)


class Next(torch.nn.Module):
    """The most likely token after the given ones, which are in the cache from a position on."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, cache_position, cache):
        static = transformers.StaticCache(config=self.model.config, max_cache_len=POSITIONS)
        for i, layer in enumerate(static.layers):
            layer.keys, layer.values = cache[2 * i : 2 * i + 2]
            layer.dtype, layer.device = layer.keys.dtype, layer.keys.device
            layer.cumulative_length = cache_position[0].clone()
            layer.is_initialized = True
        logits = self.model(input_ids=input_ids, past_key_values=static, use_cache=True, logits_to_keep=1).logits
        return logits.argmax(-1)


def bytes_of(text):
    return torch.tensor([list(text.encode("ascii"))])


def trained():
    """The whole model, trained until it reproduces TEXT."""
    torch.manual_seed(SEED)
    config = transformers.LlamaConfig(**COMMON, **SIZES)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    ids = bytes_of(TEXT)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
    print(f"trained: loss {loss.item():.4f}", flush=True)
    return model.eval().requires_grad_(False)


def generated(model):
    """The text of `generate`, and the least distance between the logits of the two most likely tokens."""
    prompt = bytes_of(PROMPT)
    result = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=TOKENS,
        do_sample=False,
        cache_implementation="static",
        disable_compile=True,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.stack(result.logits).topk(2).values
    return result.sequences[0, prompt.shape[1] :].tolist(), float((best[..., 0] - best[..., 1]).min())


def part(whole, rank):
    """One rank's part of the model."""
    given = {k: n // RANKS for k, n in SIZES.items()}
    config = transformers.LlamaConfig(**COMMON, **given)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model.lm_head = torch.nn.Linear(COMMON["hidden_size"], COMMON["vocab_size"] // RANKS, bias=False)
    weights = {}
    for name, w in whole.items():
        axis = next((a for projection, a in DIVIDED.items() if f"{projection}." in name), None)
        weights[name] = w if axis is None else w.chunk(RANKS, axis)[rank]
    model.load_state_dict(weights)
    for layer in model.model.layers:
        layer.self_attn.o_proj = Reduced(layer.self_attn.o_proj)
        layer.mlp.down_proj = Reduced(layer.mlp.down_proj)
    model.lm_head = Gathered(model.lm_head)
    return Next(model).eval().requires_grad_(False)


def empty(config):
    shape = (1, config.num_key_value_heads, POSITIONS, config.head_dim)
    return [torch.zeros(shape) for _ in range(2 * config.num_hidden_layers)]


def exported(module, tokens, shape):
    given = (torch.ones(1, tokens, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), empty(module.model.config))
    shapes = (shape, None, [None] * len(given[2]))
    return torch.export.export(module, given, dynamic_shapes=shapes, strict=False)


def without_traces(value):
    """A program's JSON without the source files of its nodes."""
    if isinstance(value, dict):
        return {k: without_traces(v) for k, v in value.items() if k != "stack_trace"}
    return [without_traces(v) for v in value] if isinstance(value, list) else value


def stripped(program, out):
    """Saves a program without traces, weights and samples; the latter are in the tensor file."""
    whole = io.BytesIO()
    torch.export.save(program, whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        for name in sorted(source.namelist()):
            if "/data/weights/weight_" in name or "/data/sample_inputs/" in name:
                continue
            data = source.read(name)
            if "/models/" in name:
                data = json.dumps(without_traces(json.loads(data))).encode()
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(entry, data)


def written(prefill, decode, cache):
    """The tokens that the programs generate when an engine runs them."""
    prompt = bytes_of(PROMPT)
    tokens = [prefill.module()(prompt, torch.tensor([0]), cache)]
    for position in range(prompt.shape[1], prompt.shape[1] + TOKENS - 1):
        tokens.append(decode.module()(tokens[-1], torch.tensor([position]), cache))
    return [int(token) for token in tokens]


def of_rank(rank, folder, expected):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    with torch.no_grad():
        module = part(load_file(f"{folder}/whole.safetensors"), rank)
        prefill = exported(module, 8, {1: torch.export.Dim("tokens", min=2, max=POSITIONS - 1)})
        decode = exported(module, 1, None)
        cache = empty(module.model.config)
        tensors = {f"w.{n}": w for n, w in module.named_parameters()}
        given = [bytes_of(PROMPT), torch.tensor([0]), *cache]
        tensors |= {f"in.{i}": t.clone() for i, t in enumerate(given)}
        found = written(prefill, decode, cache)
        if found != expected:
            raise SystemExit(f"rank {rank}: the programs write {found}, generate {expected}")
        tensors["out.0"] = torch.tensor([expected[:1]])
    save_file({f"rank{rank}.{n}": t.contiguous() for n, t in tensors.items()}, f"{folder}/{rank}.safetensors")
    if rank == 0:
        stripped(prefill, f"{folder}/prefill.pt2")
        stripped(decode, f"{folder}/decode.pt2")
    dist.barrier()
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="the folder for the files")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    model = trained()
    with tempfile.TemporaryDirectory() as folder:
        save_file(model.state_dict(), f"{folder}/whole.safetensors")
        tokens, margin = generated(model)
        print(f"generate: {bytes(tokens).decode('ascii')!r}, logits apart by at least {margin:.3f}", flush=True)
        torch.multiprocessing.spawn(of_rank, (folder, tokens), nprocs=RANKS)
        tensors = {}
        for rank in range(RANKS):
            tensors |= load_file(f"{folder}/{rank}.safetensors")
        save_file(tensors, out / "model.safetensors")
        for name in ("prefill.pt2", "decode.pt2"):
            (out / name).write_bytes(pathlib.Path(folder, name).read_bytes())
    (out / "prompt.txt").write_text(PROMPT, encoding="ascii")
    (out / "generated.txt").write_bytes(bytes(tokens))


if __name__ == "__main__":
    main()
