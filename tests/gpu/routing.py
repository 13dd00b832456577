#!/usr/bin/env python3
"""Measures how far mixtures of experts in bf16 are from f32, with their own routing and with that of f32.

    python3 tests/gpu/routing.py [--families qwen3_moe,mixtral] [--inputs 20] [--tokens 16]

The models and weights are those of experts.py. A token whose scores are nearly equal may go to other experts after rounding, which
moves its result by a large part of its norm. So a distance of one input says little. One line for each family and way (eager,
torch.compile, symmc): the median and the largest distance of the logits from those of f32 with the same weights, over all inputs,
relative to their norm. `forced` takes the experts that f32 chose, in each layer. Needs PyTorch, transformers and the package symmc.
"""

import argparse
import copy
import statistics

import torch

import experts

original_topk = torch.topk


class Routing:
    """Replaces the choice of experts in models: records the indices, or returns recorded ones in the same order."""

    def __init__(self, config):
        counts = (getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts"))
        self.experts = next((count for count in counts if count), None)
        self.slots = getattr(config, "num_experts_per_tok", None)
        self.recorded = []
        self.is_forced = False
        self.position = 0

    def topk(self, x, k, dim=-1, **options):
        if x.shape[-1] != self.experts or k != self.slots:
            return original_topk(x, k, dim=dim, **options)
        if self.is_forced:
            indices = self.recorded[self.position].view(*x.shape[:-1], k)
            self.position += 1
            return torch.return_types.topk((x.gather(-1, indices), indices))
        result = original_topk(x, k, dim=dim, **options)
        if self.position < 0:
            self.recorded.append(result[1])
        return result


def distances(function, inputs, expected, routing, routes):
    """The distance of each input from what f32 gives. `routes` are the indices that f32 chose for each input."""
    found = []
    for ids, reference, route in zip(inputs, expected, routes, strict=True):
        routing.position = 0
        if routing.is_forced:
            for buffer, indices in zip(routing.recorded, route, strict=True):
                buffer.copy_(indices)
        with torch.no_grad():
            logits = function(ids).float()
        found.append(((logits - reference).norm() / reference.norm()).item())
    return found


def measure(family, given):
    model = experts.built(family, 1)
    wide = copy.deepcopy(model).float()
    if family != "gemma3":
        wide.config._experts_implementation = "eager"
    generator = torch.Generator(device="cuda").manual_seed(1)
    inputs = [torch.randint(3, 1000, (1, given.tokens), device="cuda", generator=generator) for _ in range(given.inputs)]
    routing = Routing(model.config)
    torch.topk = routing.topk
    expected, routes = [], []
    for ids in inputs:
        routing.recorded, routing.position = [], -1
        with torch.no_grad():
            expected.append(wide(input_ids=ids, use_cache=False).logits)
        routes.append(routing.recorded)
    del wide
    routing.recorded, routing.position = [indices.clone() for indices in routes[0]], 0
    for is_forced in [False, True] if routes[0] else [False]:
        routing.is_forced = is_forced
        for way in ["eager", "default", "symmc"]:
            torch._dynamo.reset()
            function = experts.forward_pass(model)
            try:
                compiled = function if way == "eager" else experts.compiled(function, way)
                found = distances(compiled, inputs, expected, routing, routes)
            except Exception as error:
                print(f"{family} {way}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
                continue
            kind = "forced" if is_forced else "free"
            print(f"{family:12} {kind:6} {way:8} median {statistics.median(found):.2e}, largest {max(found):.2e}", flush=True)
    torch.topk = original_topk


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", default=",".join(experts.FAMILIES))
    parser.add_argument("--inputs", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=16)
    given = parser.parse_args()
    for family in given.families.split(","):
        measure(family, given)


if __name__ == "__main__":
    main()
