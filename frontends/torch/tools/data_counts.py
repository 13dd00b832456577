"""Prints `tests/suite/data_counts.txt`: programs with results whose number of rows is data, and what PyTorch gives.

    python3 data_counts.py > ../tests/suite/data_counts.txt

A line has the inputs, the nodes, and the outputs, which are the results of the last node.
"""

import torch

NAMES = {
    torch.bool: "bool", torch.uint8: "u8", torch.int32: "i32", torch.int64: "i64",
    torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64",
}  # fmt: skip


def shown(tensor: torch.Tensor) -> str:
    elements = " ".join(str(float(x)) for x in tensor.to(torch.float64).flatten().tolist())
    return f"{NAMES[tensor.dtype]}{list(tensor.shape)}".replace(" ", "") + f": {elements}"


def declared(name: str, ty: torch.dtype, shape: str) -> str:
    return f"{name} {NAMES[ty]}[{shape}]"


def row(inputs: dict[str, torch.Tensor], nodes: list[str], outputs) -> None:
    outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    given = "; ".join(f"{name}={shown(tensor)}" for name, tensor in inputs.items())
    print(f"{given} | {' ; '.join(nodes)} | {'; '.join(map(shown, outputs))}")


MASKS = [[0] * 6, [1] * 6, [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1], [1, 0, 1, 1, 0, 0]]


def positions() -> None:
    for dtype in NAMES:
        for flags in MASKS:
            for shape in ([6], [2, 3], [3, 1, 2]):
                x = (torch.tensor(flags) * torch.tensor([2, -1, 3, 1, 1, 5]).abs()).to(dtype).reshape(shape)
                node = declared("y", torch.int64, f"u0,{len(shape)}") + " = aten.nonzero.default self=%x"
                row({"x": x}, [node], x.nonzero())
    for value in (0.0, -0.0, 2.0, float("nan")):
        x = torch.tensor(value)
        row({"x": x}, ["y i64[u0,0] = aten.nonzero.default self=%x"], x.nonzero())
    x = torch.zeros(0, 3)
    row({"x": x}, ["y i64[u0,2] = aten.nonzero.default self=%x"], x.nonzero())
    x = torch.tensor([0, 1, 1, 0, 1])
    for size in (0, 2, 5, 7):
        node = f"y i64[{size},1] = aten.nonzero_static.default self=%x size={size}"
        row({"x": x}, [node], torch.nonzero_static(x, size=size))


def masks() -> None:
    for dtype in NAMES:
        for flags in MASKS:
            x = torch.arange(12).remainder(7).to(dtype).reshape(6, 2)
            m = torch.tensor(flags, dtype=torch.bool)
            name = NAMES[dtype]
            row({"x": x, "m": m}, [f"y {name}[u0,2] = aten.index.Tensor self=%x indices=[%m]"], x[m])
            wide = m.reshape(6, 1).expand(6, 2).clone()
            row({"x": x, "m": wide}, [f"y {name}[u0] = aten.masked_select.default self=%x mask=%m"], x.masked_select(wide))
            node = f"y {name}[2,u0] = aten.index.Tensor self=%x indices=[none,%m]"
            row({"x": x.T.contiguous(), "m": m}, [node], x.T[:, m].contiguous())
            matrix = m.reshape(2, 3)
            node = f"y {name}[u0] = aten.index.Tensor self=%x indices=[%m]"
            row({"x": x[:, 0].reshape(2, 3).clone(), "m": matrix}, [node], x[:, 0].reshape(2, 3)[matrix])
    x, m = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([True])
    row({"x": x, "m": m}, ["y f32[u0] = aten.masked_select.default self=%x mask=%m"], x.masked_select(m))


def rows() -> None:
    x = torch.arange(12.0).reshape(6, 2) - 4
    w = torch.tensor([[1.0, -1.0, 2.0], [0.5, 0.0, -2.0]])
    for flags in MASKS:
        m = torch.tensor(flags, dtype=torch.bool)
        taken = "r f32[u0,2] = aten.index.Tensor self=%x indices=[%m]"

        def with_rows(nodes: list[str], outputs, **more: torch.Tensor) -> None:
            row({"x": x, "m": m, **more}, [taken, *nodes], outputs)

        with_rows(["y f32[2] = aten.sum.dim_IntList self=%r dim=[0]"], x[m].sum(0))
        with_rows(["y f32[] = aten.sum.default self=%r"], x[m].sum())
        with_rows(["y f32[2] = aten.mean.dim self=%r dim=[0]"], x[m].mean(0))
        with_rows(["y f32[2] = aten.prod.dim_int self=%r dim=0"], x[m].prod(0))
        with_rows(["y f32[] = aten.linalg_vector_norm.default self=%r"], torch.linalg.vector_norm(x[m]))
        with_rows(["y f32[2] = aten.var.correction self=%r dim=[0] correction=1"], x[m].var(0) if m.any() else torch.full([2], torch.nan))
        with_rows(["y f32[u0,3] = aten.mm.default self=%r mat2=%w"], x[m] @ w, w=w)
        with_rows(["y f32[u0,2] = aten._softmax.default self=%r dim=0 half_to_float=false"], x[m].softmax(0))
        with_rows(["y f32[u0,2] = aten.cumsum.default self=%r dim=0"], x[m].cumsum(0))
        with_rows(["a f32[u0,2] = aten.neg.default self=%r", "y f32[6,2] = aten.index_put.default self=%x indices=[%m] values=%a"], torch.where(m[:, None], -x, x))
        both = x.index_put((m,), x[m] * 0 + 1, accumulate=True)
        with_rows(["a f32[u0,2] = aten.ones_like.default self=%r", "y f32[6,2] = aten.index_put.default self=%x indices=[%m] values=%a accumulate=true"], both)
        with_rows(["s f32[u0] = aten.select.int self=%r dim=1 index=0", "y i64[u1,1] = aten.nonzero.default self=%s"], x[m][:, 0].nonzero())
        loss = torch.nn.functional.mse_loss(x[m], x[m] * 2)
        with_rows(["d f32[u0,2] = aten.mul.Scalar self=%r other=2.0", "y f32[] = aten.mse_loss.default self=%r target=%d"], loss)
        if m.any():
            last = torch.tensor([-1, 0])
            with_rows(["y f32[2,2] = aten.index.Tensor self=%r indices=[%i]"], x[m][last], i=last)


def counts() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    for n in ([0, 0, 0], [1, 1, 1], [0, 4, 0], [2, 0, 1], [3, 2, 1]):
        for dtype in (torch.int64, torch.int32):
            given = torch.tensor(n, dtype=dtype)
            node = f"y {NAMES[dtype]}[u0] = aten.repeat_interleave.Tensor repeats=%n"
            row({"n": given}, [node], torch.repeat_interleave(given))
            node = "y f32[u0,2] = aten.repeat_interleave.self_Tensor self=%x repeats=%n dim=0"
            row({"x": x, "n": given}, [node], x.repeat_interleave(given, dim=0))
    node = "y f32[u0] = aten.repeat_interleave.self_Tensor self=%x repeats=%n"
    row({"x": x[:, 0].clone(), "n": torch.tensor([2])}, [node], x[:, 0].repeat_interleave(torch.tensor([2])))


def distinct() -> None:
    samples = ([3, 1, 3, 2, 1, 1], [5], [0, 0, 0], [4, 3, 2, 1], [])
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool, torch.float32, torch.float64):
        for sample in samples:
            x = torch.tensor(sample).to(dtype)
            name, n = NAMES[dtype], len(sample)
            node = f"y {name}[u0], i i64[{n}], c i64[u0] = aten._unique2.default self=%x sorted=true return_inverse=true return_counts=true"
            row({"x": x}, [node], torch.unique(x, return_inverse=True, return_counts=True))
            node = f"y {name}[u0], i i64[{n}], c i64[u0] = aten.unique_consecutive.default self=%x return_inverse=true return_counts=true"
            row({"x": x}, [node], torch.unique_consecutive(x, return_inverse=True, return_counts=True))
    x = torch.tensor([1.0, float("nan"), -1.0, float("inf"), 2.0, float("nan"), 1.0])
    node = "y f32[u0], i i64[7], c i64[u0] = aten._unique2.default self=%x sorted=true return_inverse=true return_counts=true"
    row({"x": x}, [node], torch.unique(x, return_inverse=True, return_counts=True))
    x = torch.tensor([[2, 1, 2], [0, 1, 2]])
    node = "y i64[u0], i i64[2,3], c i64[u0] = aten._unique2.default self=%x sorted=true return_inverse=true return_counts=true"
    row({"x": x}, [node], torch.unique(x, return_inverse=True, return_counts=True))


if __name__ == "__main__":
    print("# Results whose number of rows is data, as PyTorch gives them. Made by tools/data_counts.py.")
    positions()
    masks()
    rows()
    counts()
    distinct()
