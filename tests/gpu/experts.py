#!/usr/bin/env python3
"""Times mixtures of experts of transformers under symmc and under torch.compile, in turn and in one run.

    python3 tests/gpu/experts.py [--tokens 16,256,1024,4096] [--families qwen3_moe,mixtral] [--rounds 8] [--train]
        [--ways graphs,default,symmc] [--profile]
    torchrun --nproc-per-node 2 tests/gpu/experts.py ...

Four layers, hidden size 2048, 32 experts (8 for Mixtral), bf16, random weights, the modelling code of transformers. With several ranks
the experts are divided among them as transformers does it (expert parallelism). One line for each family and number of tokens:
microseconds of a call when calls follow each other, for both; the ratio; and the distance of both results from eager's, relative to its
norm. A call is a forward pass under CUDA graphs (`mode="reduce-overhead"`). With `--train` it is a training step without its optimiser:
forward pass, loss of the next token and backward pass. Then torch.compile is measured both with CUDA graphs and without, the ratio is to
the faster one, and distances are those of all gradients together. `--profile` also prints the kernels of each way that take the most time.
Needs PyTorch, transformers and the package symmc.
"""

import argparse
import gc
import os
import shutil
import statistics
import tempfile
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import torch.distributed as dist
import transformers

import symmc.torch

COMMON = dict(hidden_size=2048, num_hidden_layers=4, num_attention_heads=16, num_key_value_heads=4, vocab_size=1024,
              max_position_embeddings=8192)
MIXED = dict(num_experts_per_tok=8, moe_intermediate_size=768, head_dim=128)
LATENT = dict(q_lora_rank=512, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, num_key_value_heads=16,
              n_group=1, topk_group=1)
FAMILIES = {
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", {**COMMON, **MIXED, "num_experts": 32}),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM", {
        **COMMON, "num_local_experts": 32, "num_experts_per_tok": 4, "intermediate_size": 2048, "head_dim": 64}),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {
        **COMMON, "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 4096}),
    "deepseek_v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM", {
        **COMMON, **MIXED, **LATENT, "n_routed_experts": 32, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "intermediate_size": 4096, "head_dim": 64}),
    "glm4_moe": ("Glm4MoeConfig", "Glm4MoeForCausalLM", {
        **COMMON, **MIXED, "n_routed_experts": 32, "n_shared_experts": 1, "first_k_dense_replace": 1, "intermediate_size": 4096}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", {
        **COMMON, "head_dim": 128, "intermediate_size": 8192, "sliding_window": 512}),
}


def built(family, ranks):
    config_class, model_class, given = FAMILIES[family]
    config = getattr(transformers, config_class)(**given)
    if family != "gemma3":
        config._experts_implementation = "grouped_mm"
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = getattr(transformers, model_class)(config).to(torch.bfloat16).eval().requires_grad_(False)
    for number, (name, weight) in enumerate(model.named_parameters()):
        generator = torch.Generator(device="cuda").manual_seed(number)
        drawn = torch.randn(weight.shape, generator=generator, device="cuda")
        weight.copy_(drawn * 0.02 if weight.dim() > 1 else drawn * 0.02 + ("norm" in name))
    return divided(model, ranks) if ranks > 1 else model


def divided(model, ranks):
    """The model with its experts divided among the ranks. transformers divides weights when it loads them."""
    from transformers.distributed import DistributedConfig

    config = DistributedConfig(tp_size=ranks, tp_plan="auto", enable_expert_parallel=True)
    folder = [tempfile.mkdtemp(dir="/dev/shm") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    if dist.get_rank() == 0:
        model.save_pretrained(folder[0])
    dist.barrier()
    loaded = type(model).from_pretrained(folder[0], distributed_config=config, dtype=model.dtype)
    loaded.config._experts_implementation = model.config._experts_implementation
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    return loaded.eval().requires_grad_(False)


def forward_pass(model):
    names = {"model": model}
    exec("def call(ids):\n    return model(input_ids=ids, use_cache=False).logits", names)
    return names["call"]


def loss_of(model):
    names = {"model": model, "cross_entropy": torch.nn.functional.cross_entropy}
    exec(
        "def call(ids):\n"
        "    logits = model(input_ids=ids, use_cache=False).logits\n"
        "    return cross_entropy(logits[0, :-1].float(), ids[0, 1:])",
        names,
    )
    return names["call"]


def compiled(function, way):
    if way == "symmc":
        options = {"fallback": "error"}
        return torch.compile(function, backend=symmc.torch.backend, dynamic=False, options=options)
    modes = {"graphs": "reduce-overhead", "default": "default"}
    return torch.compile(function, mode=modes[way], dynamic=False)


class Inference:
    """A forward pass. The result is the logits."""

    ways = ("graphs", "symmc")

    def __init__(self, model, ids):
        self.function, self.ids = forward_pass(model), ids

    def call(self, function):
        with torch.no_grad():
            return function(self.ids)

    def results(self, function):
        return [self.call(function).float()]


class Training:
    """A forward pass, a loss and a backward pass. The results are the gradients, those of divided weights as this rank has them."""

    ways = ("graphs", "default", "symmc")

    def __init__(self, model, ids):
        self.function, self.ids = loss_of(model), ids
        self.parameters = list(model.requires_grad_(True).parameters())

    def call(self, function):
        for parameter in self.parameters:
            parameter.grad = None
        torch.compiler.cudagraph_mark_step_begin()
        loss = function(self.ids)
        loss.backward()
        return loss

    def results(self, function):
        self.call(function)
        gradients = (p.grad for p in self.parameters if p.grad is not None)
        return [(g.to_local() if hasattr(g, "to_local") else g).float() for g in gradients]


def distance(found, expected):
    """The norm of the differences of all tensors together, relative to that of what was expected."""
    differences = torch.stack([(a - b).norm() for a, b in zip(found, expected, strict=True)])
    return (differences.norm() / torch.stack([b.norm() for b in expected]).norm()).item()


def print_kernels(name, call, runs=5, most=25):
    """The kernels of a call that take the most time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(runs):
            call()
        torch.cuda.synchronize()
    found = sorted(profiler.key_averages(), key=lambda e: -e.self_device_time_total)
    total = sum(e.self_device_time_total for e in found) / runs
    print(f"{name}: {total:.0f} µs of kernels in a call", flush=True)
    for event in found[:most]:
        time = event.self_device_time_total / runs
        print(f"  {time:8.1f} µs {event.count / runs:6.1f} times  {event.key[:150]}", flush=True)


def time_of(call, ranks, runs=10):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    if ranks > 1:
        dist.barrier()
    call()
    start.record()
    for _ in range(runs):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000 / runs


def measure(family, tokens, given, ranks):
    model = built(family, ranks)
    is_first = int(os.environ.get("RANK", 0)) == 0
    for count in tokens:
        torch._dynamo.reset()
        ids = torch.randint(3, 1000, (1, count), device="cuda", generator=torch.Generator(device="cuda").manual_seed(1))
        work = (Training if given.train else Inference)(model, ids)
        expected = work.results(work.function)
        calls, distances = {}, {}
        for way in given.ways.split(",") if given.ways else work.ways:
            try:
                function = compiled(work.function, way)
                for _ in range(3):
                    found = work.results(function)
                distances[way] = distance(found, expected)
                calls[way] = lambda function=function: work.call(function)
            except Exception as error:
                print(f"{family} {count} {way}: {type(error).__name__}: {' '.join(str(error).split())[:400]}", flush=True)
        times = {way: [] for way in calls}
        for _ in range(given.rounds):
            for way, call in calls.items():
                times[way].append(time_of(call, ranks))
        found = {way: statistics.median(all_of) for way, all_of in times.items()}
        others = {way: time for way, time in found.items() if way != "symmc"}
        if is_first and "symmc" in found and others:
            ratio = found["symmc"] / min(others.values())
            shown = ", ".join(f"{way} {time:.1f}" for way, time in found.items())
            apart = ", ".join(f"{way} {far:.1e}" for way, far in distances.items())
            print(f"{family:12} {count:5} tokens: {shown} µs, ratio {ratio:.2f}, from eager: {apart}", flush=True)
        for way, call in calls.items() if given.profile else ():
            if is_first:
                print_kernels(f"{family} {count} {way}", call)
            else:
                for _ in range(5):
                    call()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", default="16,256,1024,4096")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--train", action="store_true", help="forward pass, loss and backward pass")
    parser.add_argument("--ways", help="some of graphs, default and symmc")
    parser.add_argument("--profile", action="store_true", help="print the kernels that take the most time")
    given = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        rank = int(os.environ["RANK"])
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    for family in given.families.split(","):
        measure(family, [int(n) for n in given.tokens.split(",")], given, ranks)
    if ranks > 1:
        # The end of a communicator waits until no CUDA graph has its collectives.
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.synchronize()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
