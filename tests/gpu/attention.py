"""Attention by PyTorch (cuDNN's and flash) on one GPU, and the programs of the same attentions for symmc.

    attention.py program CASE          prints the program
    attention.py peers CASE            prints the median microseconds of a call by cuDNN and by flash, and how far each is
                                       from attention in float64, where that is of a size to compute

A case is `prefill:HEADS/KEY_HEADS:ELEMENTS:TOKENS:full|causal|WINDOW`, `gradient:` and the same, which is the backward pass of
that attention, or `decode:HEADS/KEY_HEADS:ELEMENTS:SEQUENCES:TOKENS`, in bf16; operands lie as projections leave them, `[sequences, tokens, heads, elements]`.
"""

import sys

CALLS, REPLAYS = 10, 21


def parse(case):
    kind, heads, elements, a, b = case.split(":")
    h, g = (int(n) for n in heads.split("/"))
    if kind == "decode":
        return dict(h=h, g=g, e=int(elements), b=int(a), l=1, s=int(b), sees="full")
    return dict(h=h, g=g, e=int(elements), b=1, l=int(a), s=int(a), sees=b, backward=kind == "gradient")


def program(x):
    b, h, g, l, s, e = (x[n] for n in "bhglse")
    if x["sees"] in ("full", "causal"):
        bounds = f"causal={str(x['sees'] == 'causal').lower()}"
    else:
        bounds = f"bounds=[below row + (1), from row + ({1 - int(x['sees'])})]"
    heads, keys, more = f"bf16[{b}, {h}, {l}, {e}]", f"bf16[{b}, {g}, {s}, {e}]", ""
    if x.get("backward"):
        sizes = (("q", l, h), ("k", s, g), ("v", s, g))
        stored = [f"%{name}s: bf16[{b}, {n}, {m}, {e}] = permute %d{name} perm=[0, 2, 1, 3]" for name, n, m in sizes]
        more = f"arg %y: bf16[{b}, {l}, {h}, {e}]\narg %sums: f32[{b}, {h}, {l}]\n"
        call = f"""%yh: {heads} = permute %y perm=[0, 2, 1, 3]
%dq: {heads}, %dk: {keys}, %dv: {keys} = attention_gradient %yh, %yh, %sums, %qh, %kh, %vh {bounds} scale={e ** -0.5}
{chr(10).join(stored)}
return %qs
return %ks
return %vs"""
    else:
        call = f"""%y: {heads} = attention %qh, %kh, %vh {bounds} scale={e ** -0.5}
return %y"""
    return f"""program "attention" ranks 1
arg %q: bf16[{b}, {l}, {h}, {e}]
arg %k: bf16[{b}, {s}, {g}, {e}]
arg %v: bf16[{b}, {s}, {g}, {e}]
{more}%qh: bf16[{b}, {h}, {l}, {e}] = permute %q perm=[0, 2, 1, 3]
%kh: bf16[{b}, {g}, {s}, {e}] = permute %k perm=[0, 2, 1, 3]
%vh: bf16[{b}, {g}, {s}, {e}] = permute %v perm=[0, 2, 1, 3]
{call}
"""


def peers(case, x):
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(0)
    b, h, g, l, s, e = (x[n] for n in "bhglse")
    draw = lambda n, heads: torch.randn(b, n, heads, e, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    q, k, v = draw(l, h), draw(s, g), draw(s, g)
    mask, options = None, {}
    if x["sees"] == "causal":
        options = {"is_causal": True}
    if x["sees"] != "full":
        i, j = torch.arange(l, device="cuda")[:, None], torch.arange(s, device="cuda")[None]
        mask = j <= i
        if x["sees"] != "causal":
            mask &= j > i - int(x["sees"])
            options = {"attn_mask": mask}
    reference = None
    if b * h * max(l * s, s * e) <= 1 << 28 and not x.get("backward"):
        wide = [t.double() for t in (q, k.repeat_interleave(h // g, 1), v.repeat_interleave(h // g, 1))]
        scores = wide[0] @ wide[1].transpose(2, 3) * e**-0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        reference = torch.softmax(scores, -1) @ wide[2]
    out = []
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
        forward = lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=h != g, **options)
        try:
            with sdpa_kernel(backend):
                call, result = forward, forward()
                if x.get("backward"):
                    wanted = [t.requires_grad_() for t in (q, k, v)]
                    result = forward()
                    call = lambda: torch.autograd.grad(result, wanted, result, retain_graph=True)
                    call()
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for _ in range(CALLS):
                        call()
        except RuntimeError:
            out.append(f"{name} none")
            continue
        times = []
        for _ in range(REPLAYS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1000 / CALLS)
        far = "" if reference is None else f" ({((result - reference).norm() / reference.norm()).item():.1e})"
        out.append(f"{name} {sorted(times)[REPLAYS // 2]:.1f}{far}")
    print(case, *out, sep="  ", flush=True)


if __name__ == "__main__":
    action, case = sys.argv[1], sys.argv[2:]
    if action == "program":
        print(program(parse(case[0])), end="")
    else:
        for one in case:
            peers(one, parse(one))
