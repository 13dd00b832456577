#!/usr/bin/env python3
"""Runs ONNX models that ONNX Runtime has quantised: `python3 tests/coverage/quantised_onnx.py SYMMC`.

Two small models, one of attention and one of convolutions, in the forms of `onnxruntime.quantization`: QDQ and QOperator with signed and
unsigned activations, with scales for tensors and for channels; dynamic; and MatMulNBits with 4 and 8 bits. Weights have 7 bits
(`reduce_range`), because ONNX Runtime saturates sums of 16 bits on some CPUs. Results are compared with those of ONNX Runtime without
its optimiser. Exit code 1 if a model is refused or its result is wrong.
Needs the packages torch, onnx, onnx_ir, onnxruntime and safetensors.
"""

import collections
import contextlib
import io
import logging
import pathlib
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import onnx
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from safetensors.numpy import save_file
from torch import nn
from torch.nn import functional as F

from outcome import run


class Attention(nn.Module):
    """Two blocks of a transformer."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict(dict(norm=nn.LayerNorm(64), qkv=nn.Linear(64, 192), out=nn.Linear(64, 64), up=nn.Linear(64, 128), down=nn.Linear(128, 64)))
            for _ in range(2)
        )

    def forward(self, x):
        for block in self.blocks:
            heads = [part.unflatten(-1, (4, 16)).transpose(-3, -2) for part in block.qkv(block.norm(x)).chunk(3, -1)]
            weights = torch.softmax(heads[0] @ heads[1].transpose(-1, -2) / 4, -1)
            x = x + block.out((weights @ heads[2]).transpose(-3, -2).flatten(-2))
            x = x + block.down(F.gelu(block.up(x)))
        return x


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, groups=4, stride=2)
        self.classes = nn.Linear(8, 10)

    def forward(self, x):
        return self.classes(torch.relu(self.second(torch.relu(self.first(x)))).mean((2, 3)))


class Samples(CalibrationDataReader):
    def __init__(self, like):
        self.samples = iter([{"x": torch.randn_like(like).numpy()} for _ in range(8)])

    def get_next(self):
        return next(self.samples, None)


def quantised(source, x, folder):
    """The paths of the model in all forms."""
    yield source
    path = folder / f"{source.stem}_dynamic.onnx"
    quantize_dynamic(source, path, weight_type=QuantType.QInt8, extra_options={"WeightSymmetric": True}, reduce_range=True)
    yield path
    for form in (QuantFormat.QDQ, QuantFormat.QOperator):
        for activations in (QuantType.QUInt8, QuantType.QInt8):
            for by_channel in (False, True):
                path = folder / f"{source.stem}_{form}_{activations}{'_channels' * by_channel}.onnx"
                types = dict(activation_type=activations, weight_type=QuantType.QInt8)
                quantize_static(source, path, Samples(x), quant_format=form, per_channel=by_channel, reduce_range=True, **types)
                yield path
    for bits in (4, 8) if source.stem == "attention" else ():
        quantizer = MatMulNBitsQuantizer(onnx.load(source), bits=bits, block_size=32, is_symmetric=False)
        quantizer.process()
        path = folder / f"{source.stem}_{bits}_bits.onnx"
        quantizer.model.save_model_to_file(str(path))
        yield path


def main():
    symmc = sys.argv[1]
    counts = collections.Counter()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name, module, x in (("attention", Attention(), torch.randn(2, 8, 64)), ("convolutions", Convolutions(), torch.randn(2, 3, 16, 16))):
            source = folder / f"{name}.onnx"
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                torch.onnx.export(module.eval(), (x,), source, dynamo=False, input_names=["x"], output_names=["y"], opset_version=17)
                paths = list(quantised(source, x, folder))
            for path in paths:
                options = onnxruntime.SessionOptions()
                options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
                session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
                tensors = path.with_suffix(".safetensors")
                save_file({"rank0.in.0": x.numpy(), "rank0.out.0": session.run(None, {"x": x.numpy()})[0]}, tensors)
                status, why = run(symmc, path, tensors)
                counts[status] += 1
                if status != "agreed":
                    print(f"{status}: {path.stem}: {why[:200]}", flush=True)
    print(", ".join(f"{status} {counts[status]}" for status in ("agreed", "refused", "wrong")))
    sys.exit(0 if set(counts) == {"agreed"} else 1)


if __name__ == "__main__":
    main()
