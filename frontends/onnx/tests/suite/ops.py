"""Writes ops.txt: cases of ONNX ops with the results of the reference evaluator of the `onnx` package. The results
of ops of com.microsoft, of recurrent layers, and of those that the evaluator lacks or gets wrong, are those of ONNX Runtime.

    python3 ops.py > ops.txt        (needs onnx, onnxruntime, numpy and ml_dtypes)

A case is: version of the operators, domain and op, attributes, operands, number of results. An operand is a NumPy array;
C(array) is a constant of the program, and None an omitted operand.
"""

import sys

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime import InferenceSession

DTYPES = {
    np.dtype("bool"): "bool",
    np.dtype("uint8"): "u8",
    np.dtype("uint16"): "u16",
    np.dtype("uint32"): "u32",
    np.dtype("int8"): "i8",
    np.dtype("int16"): "i16",
    np.dtype(ml_dtypes.float8_e4m3fn): "f8e4m3",
    np.dtype(ml_dtypes.float8_e5m2): "f8e5m2",
    np.dtype(ml_dtypes.float8_e8m0fnu): "f8e8m0",
    np.dtype(ml_dtypes.bfloat16): "bf16",
    np.dtype("int32"): "i32",
    np.dtype("int64"): "i64",
    np.dtype("float16"): "f16",
    np.dtype("float32"): "f32",
    np.dtype("float64"): "f64",
}
INF = float("inf")
NAN = float("nan")


# Ops of ONNX whose results are those of ONNX Runtime.
BY_RUNTIME = {"SimplifiedLayerNormalization", "LRN", "GlobalMaxPool", "GlobalLpPool"}
# Ops whose results have a dtype that follows from the operands.
QUANTISED = ("QLinear", "Quantize", "Dequantize", "QGemm", "ConvInteger", "MatMulInteger")


class C:
    """A constant of the program."""

    def __init__(self, array, dtype=np.int64):
        self.array = np.asarray(array, dtype=None if isinstance(array, np.ndarray) else dtype)


def f(*values, shape=None, dtype=np.float32):
    array = np.array(values, dtype=dtype)
    return array.reshape(shape) if shape is not None else array


def i(*values, shape=None, dtype=np.int64):
    return f(*values, shape=shape, dtype=dtype)


def ramp(*shape, dtype=np.float32, start=0, step=1):
    count = int(np.prod(shape))
    return (start + step * np.arange(count)).astype(dtype).reshape(shape)


def wave(*shape, dtype=np.float32):
    count = int(np.prod(shape))
    return np.round(np.sin(np.arange(count) * 1.7 + 0.3) * 3, 3).astype(dtype).reshape(shape)


T = {"FLOAT": 1, "INT32": 6, "INT64": 7, "BOOL": 9, "FLOAT16": 10, "DOUBLE": 11}

CASES = [
    # Reductions of nothing, paddings by data, and grids.
    (20, "ReduceMax", {"keepdims": 0}, [np.zeros((2, 0, 3), np.float32), C([1])]),
    (20, "ReduceMin", {}, [np.zeros((2, 0), np.float32), C([1])]),
    (20, "ReduceMax", {}, [np.zeros((0, 2), np.int32), C([0])]),
    (18, "ReduceLogSumExp", {}, [np.zeros((2, 0, 2), np.float32), C([1])]),
    (21, "Pad", {}, [ramp(2, 3), C([1, -1, 0, 2]), np.array(7.5, np.float32)]),
    (20, "AffineGrid", {}, [ramp(2, 2, 3), C([2, 1, 3, 4])]),
    (20, "AffineGrid", {"align_corners": 1}, [ramp(1, 3, 4), C([1, 2, 2, 1, 3])]),
    (11, "Compress", {"axis": 0}, [ramp(3, 2), C([0, 1, 1], bool)]),
    (11, "Compress", {"axis": -1}, [ramp(2, 4), C([1, 0, 1], bool)]),
    (11, "Compress", {}, [ramp(3, 2), C([0, 1, 0, 0, 1], bool)]),
    (11, "Compress", {}, [ramp(3, 2), C([0, 0], bool)]),
    (13, "MeanVarianceNormalization", {}, [ramp(2, 2, 2, 2)]),
    (9, "MeanVarianceNormalization", {"axes": [-1]}, [f(1, 2, 6, 3, 3, 3, shape=(2, 3))]),
    # Arithmetic.
    (20, "Add", {}, [ramp(2, 3), f(1, 2, 3)]),
    (20, "Sub", {}, [ramp(2, 3), C(2.0, np.float32)]),
    (20, "Sub", {}, [C(2.0, np.float32), ramp(2, 3)]),
    (20, "Mul", {}, [i(1, -2, 3), i(4)]),
    (20, "Div", {}, [f(1, 2, 3), f(2)]),
    (20, "Div", {}, [i(-(2**63), 7, -7, -6, 7), i(2, -2, 2, 2, 0x7FFFFFFFFFFFFFFF)]),
    (20, "Mod", {"fmod": 1}, [i(-(2**63), 7, -7, -6, 7), i(3, -2, 2, 2, -(2**63))]),
    (20, "Mod", {}, [i(7, -7, 7, -7), i(3, 3, -3, -3)]),
    (20, "Mod", {"fmod": 1}, [f(7.5, -7.5, 7.5, -7.5), f(3, 3, -3, -3)]),
    (20, "Pow", {}, [f(1, 2, 3), i(2)]),
    (20, "Pow", {}, [f(1, 4, 9), C(0.5, np.float32)]),
    (20, "Pow", {}, [i(1, 2, 3), i(2)]),
    (13, "Sum", {}, [f(1, 2), f(3), f(4, 5)]),
    (13, "Mean", {}, [f(1, 2), f(3, 4), f(5, 9)]),
    (13, "Max", {}, [f(1, 7), f(3, 4), f(2)]),
    (13, "Min", {}, [i(1, 7), i(3, 4), i(2)]),
    (20, "Equal", {}, [i(1, 2, 3), i(1, 0, 3)]),
    (20, "Equal", {}, [i(1, 2, 3), C(2)]),
    (20, "Less", {}, [f(1, 2, 3), f(2)]),
    (20, "LessOrEqual", {}, [f(1, 2, 3), f(2)]),
    (20, "Greater", {}, [C(2.0, np.float32), f(1, 2, 3)]),
    (20, "GreaterOrEqual", {}, [f(1, 2, 3), f(2)]),
    (20, "And", {}, [f(1, 0, 1, dtype=bool), f(1, 1, 0, dtype=bool)]),
    (20, "Or", {}, [f(1, 0, 0, dtype=bool), f(1, 1, 0, dtype=bool)]),
    (20, "Xor", {}, [f(1, 0, 1, dtype=bool), f(1, 1, 0, dtype=bool)]),
    (20, "Not", {}, [f(1, 0, dtype=bool)]),
    (20, "BitwiseAnd", {}, [i(6, 5), i(3)]),
    (20, "BitwiseOr", {}, [i(6, 5), i(3)]),
    (20, "BitwiseXor", {}, [i(6, 5), i(3)]),
    (20, "BitwiseNot", {}, [i(6, -5)]),
    (20, "Neg", {}, [f(1, -2)]),
    (20, "Abs", {}, [i(1, -2)]),
    (20, "Sign", {}, [f(1, -2, 0)]),
    (20, "Floor", {}, [f(1.5, -1.5)]),
    (20, "Ceil", {}, [f(1.5, -1.5)]),
    (20, "Round", {}, [f(0.5, 1.5, 2.5, -0.5, -1.2)]),
    (20, "Exp", {}, [f(0, 1, -1)]),
    (20, "Log", {}, [f(1, 2, 10)]),
    (20, "Sqrt", {}, [f(1, 2, 9)]),
    (20, "Reciprocal", {}, [f(1, 2, -4)]),
    (20, "Erf", {}, [f(0, 0.5, -1)]),
    (20, "Sin", {}, [f(0, 1, 2)]),
    (20, "Cos", {}, [f(0, 1, 2)]),
    (20, "Tan", {}, [f(0, 1, 0.5)]),
    (22, "Atan", {}, [f(0, -0.0, 1, -2.5, 1e20, INF, -INF, NAN)]),
    (22, "Asin", {}, [f(0, -0.0, 1, -1, 0.5, -0.99999994, 1e-6, 1.5, INF, NAN)]),
    (22, "Acos", {}, [f(0, -0.0, 1, -1, 0.5, -0.99999994, 0.99999994, 1.5, -INF, NAN)]),
    (20, "Acos", {}, [f(-0.9, 0.1, dtype=np.float64)]),
    (7, "Asin", {}, [f(-0.9, 0.999, dtype=np.float16)]),
    (20, "IsNaN", {}, [f(1, float("nan"))]),
    (20, "IsInf", {}, [f(1, INF, -INF)]),
    (20, "IsInf", {"detect_positive": 0}, [f(1, INF, -INF)]),
    (20, "Clip", {}, [f(-2, 0, 9), C(-1.0, np.float32), C(3.0, np.float32)]),
    (20, "Clip", {}, [f(-2, 0, 9), None, f(3, shape=())]),
    (20, "Clip", {}, [i(-2, 9), C(0), None]),
    (20, "Where", {}, [f(1, 0, dtype=bool), f(1, 2), f(3, 4)]),
    (20, "Where", {}, [f(1, 0, dtype=bool, shape=(2, 1)), f(1, 2), C(0.0, np.float32)]),
    (20, "Cast", {"to": T["INT64"]}, [f(1.7, -1.7)]),
    (20, "Cast", {"to": T["BOOL"]}, [f(0, 2)]),
    (20, "Cast", {"to": T["FLOAT16"]}, [f(0.1, 2)]),
    (20, "CastLike", {}, [f(0.6, 2), i(1)]),
    (20, "Identity", {}, [f(1, 2)]),
    (20, "Dropout", {}, [f(1, 2)], 2),
    # No numbers, infinities and signed zeros.
    (20, "Sign", {}, [f(NAN, -0.0, 0.0, INF, -INF)]),
    (20, "Abs", {}, [f(NAN, -0.0, -INF)]),
    (20, "Neg", {}, [f(NAN, 0.0, INF)]),
    (20, "Relu", {}, [f(NAN, -0.0, -INF, INF)]),
    (20, "Floor", {}, [f(NAN, -0.0, -INF, INF)]),
    (20, "Ceil", {}, [f(NAN, -0.5, -INF, INF)]),
    (20, "Round", {}, [f(NAN, -0.5, -INF, INF)]),
    (20, "Max", {}, [f(NAN, 1, 2), f(1, NAN, 3), f(0, 0, 5)]),
    (20, "Min", {}, [f(NAN, 1, 2), f(1, NAN, 3), f(0, 0, 5)]),
    (20, "Clip", {}, [f(NAN, 0, INF, -INF), C(-1.0, np.float32), C(3.0, np.float32)]),
    (20, "Clip", {}, [f(0, 5, NAN), f(3, shape=()), f(1, shape=())]),
    (20, "ReduceMax", {}, [f(1, NAN, 3, 4, shape=(2, 2)), C([1])]),
    (20, "ReduceMin", {}, [f(1, NAN, 3, 4, shape=(2, 2)), C([1])]),
    (20, "ReduceSum", {}, [f(1, NAN, INF, -INF, shape=(2, 2)), C([1])]),
    (20, "ArgMax", {"axis": 1}, [f(1, NAN, 3, 4, 4, NAN, shape=(2, 3))]),
    (20, "ArgMin", {"axis": 1}, [f(1, NAN, 3, 4, 4, NAN, shape=(2, 3))]),
    (20, "Less", {}, [f(NAN, 1, INF, -INF), f(1, NAN, INF, NAN)]),
    (20, "LessOrEqual", {}, [f(NAN, 1, INF, -INF), f(1, NAN, INF, NAN)]),
    (20, "Greater", {}, [f(NAN, 1, INF, -INF), f(1, NAN, INF, NAN)]),
    (20, "GreaterOrEqual", {}, [f(NAN, 1, INF, -INF), f(1, NAN, INF, NAN)]),
    (20, "Equal", {}, [f(NAN, 1, INF, 0.0), f(NAN, NAN, INF, -0.0)]),
    (20, "Mod", {"fmod": 1}, [f(NAN, 5, 5, INF, -5, 0.0), f(2, NAN, INF, 2, INF, 0.0)]),
    (28, "Mod", {}, [f(7.5, -7.5, 7.5, -7.5, NAN, 5), f(3, 3, -3, -3, 2, NAN)]),
    (20, "Pow", {}, [f(NAN, 1, NAN, -8, 0), f(0, NAN, 1, 0.5, -1)]),
    (20, "Exp", {}, [f(NAN, INF, -INF)]),
    (20, "Log", {}, [f(NAN, 0, -1, INF)]),
    (20, "Sqrt", {}, [f(NAN, -1, INF, -0.0)]),
    (20, "Reciprocal", {}, [f(NAN, 0.0, -0.0, INF)]),
    (20, "Tanh", {}, [f(NAN, INF, -INF)]),
    (20, "Sigmoid", {}, [f(NAN, INF, -INF)]),
    (20, "Erf", {}, [f(NAN, INF, -INF)]),
    (20, "Gelu", {}, [f(NAN, INF)]),
    (20, "LeakyRelu", {"alpha": 0.1}, [f(NAN, INF, -INF)]),
    (20, "PRelu", {}, [f(NAN, INF, -INF), f(0.2)]),
    (20, "ThresholdedRelu", {}, [f(NAN, INF, -INF)]),
    (20, "HardSigmoid", {}, [f(NAN, INF, -INF)]),
    (20, "HardSwish", {}, [f(NAN, INF)]),
    (20, "Elu", {}, [f(NAN, INF, -INF)]),
    (20, "Selu", {}, [f(NAN, INF, -INF)]),
    (20, "Celu", {}, [f(NAN, INF, -INF)]),
    (20, "Softplus", {}, [f(NAN, INF, -INF)]),
    (20, "Softsign", {}, [f(NAN, 3)]),
    (20, "Mish", {}, [f(NAN, 3)]),
    (20, "TopK", {}, [f(1, NAN, 3, 2), C([2])], 2),
    (20, "TopK", {"largest": 0}, [f(1, NAN, 3, 2), C([2])], 2),
    (20, "IsInf", {"detect_negative": 0}, [f(NAN, INF, -INF)]),
    (20, "Softmax", {}, [f(NAN, 1, 1, 2, shape=(2, 2))]),
    (20, "CumSum", {}, [f(1, NAN, 3), C(0)]),
    (20, "Cast", {"to": T["BOOL"]}, [f(NAN, 0, -0.0, 0.2)]),
    # Factors of integers.
    (20, "Gemm", {"alpha": 0.5, "beta": 0.5}, [i(3, 1, 2, 3, shape=(2, 2), dtype=np.int32), i(1, 2, 1, -4, shape=(2, 2), dtype=np.int32), i(3, -1, dtype=np.int32)]),
    (20, "Gemm", {"beta": 2.0}, [i(3, 1, shape=(1, 2)), i(1, 2, shape=(2, 1)), i(3)]),
    # Activations.
    (20, "Relu", {}, [f(-1, 2)]),
    (20, "Tanh", {}, [f(-1, 2)]),
    (20, "Sigmoid", {}, [f(-1, 2)]),
    (20, "Gelu", {}, [f(-1, 0.5, 2)]),
    (20, "Gelu", {"approximate": "tanh"}, [f(-1, 0.5, 2)]),
    (24, "Swish", {}, [f(-1, 0.5, 2)]),
    (24, "Swish", {"alpha": 1.5}, [f(-1, 0.5, 2)]),
    (20, "HardSigmoid", {}, [f(-5, 0.5, 5)]),
    (20, "HardSwish", {}, [f(-5, 0.5, 5)]),
    (20, "LeakyRelu", {"alpha": 0.1}, [f(-5, 0.5)]),
    (20, "PRelu", {}, [f(-5, 0.5), f(0.2)]),
    (20, "ThresholdedRelu", {"alpha": 1.0}, [f(-5, 0.5, 3)]),
    (20, "Elu", {"alpha": 2.0}, [f(-1, 0.5)]),
    (20, "Elu", {"alpha": 1e6}, [f(-1e-6, -3e-7, -INF, 100)]),
    (20, "Selu", {}, [f(-1, 0.5)]),
    (20, "Celu", {"alpha": 2.0}, [f(-1, 0.5)]),
    (20, "Softplus", {}, [f(-1, 0.5, 50)]),
    (20, "Mish", {}, [f(-1, 0.5, 3)]),
    (20, "Softsign", {}, [f(-1, 0.5, 3)]),
    # Products.
    (20, "MatMul", {}, [ramp(2, 3), ramp(3, 2)]),
    (20, "MatMul", {}, [ramp(2, 2, 3), ramp(3, 2)]),
    (20, "MatMul", {}, [ramp(3), ramp(3, 2)]),
    (20, "MatMul", {}, [ramp(2, 3), ramp(3)]),
    (20, "Gemm", {"transB": 1}, [ramp(2, 3), ramp(4, 3), ramp(4)]),
    (20, "Gemm", {"transA": 1, "alpha": 0.5, "beta": 2.0}, [ramp(3, 2), ramp(3, 4), ramp(2, 1)]),
    (20, "Gemm", {}, [ramp(2, 3), ramp(3, 2)]),
    # Norms.
    (20, "Softmax", {}, [wave(2, 3)]),
    (20, "Softmax", {"axis": 0}, [wave(2, 3)]),
    (20, "LogSoftmax", {}, [wave(2, 3)]),
    (20, "LayerNormalization", {}, [wave(2, 4), ramp(4), ramp(4, start=1)]),
    (20, "LayerNormalization", {"axis": 1}, [wave(2, 2, 3), ramp(2, 3)], 3),
    (23, "RMSNormalization", {"epsilon": 0.01}, [wave(2, 4), ramp(4)]),
    (21, "GroupNormalization", {"num_groups": 2}, [wave(1, 4, 3), ramp(4), ramp(4)]),
    (20, "LpNormalization", {"axis": 0}, [wave(2, 3)]),
    (15, "BatchNormalization", {}, [wave(2, 3, 2), ramp(3), wave(3), wave(3), ramp(3, start=1)]),
    (9, "BatchNormalization", {"epsilon": 0.01}, [wave(2, 3), ramp(3), wave(3), wave(3), ramp(3, start=1)]),
    (15, "BatchNormalization", {"training_mode": 1, "momentum": 0.75},
     [wave(2, 3, 2), ramp(3), wave(3), wave(3), ramp(3, start=1)], 3),
    (7, "InstanceNormalization", {}, [wave(2, 2, 3), ramp(2), wave(2)]),
    (22, "InstanceNormalization", {"epsilon": 0.1}, [wave(1, 3, 2, 2), ramp(3), wave(3)]),
    (13, "LRN", {"size": 3}, [wave(1, 4, 1, 2)]),
    (13, "LRN", {"size": 5, "alpha": 0.5, "beta": 0.5, "bias": 2.0}, [wave(1, 4, 1, 2)]),
    (22, "LpNormalization", {"axis": 1}, [f(3, 4, 0, 0, shape=(2, 2))]),
    # Attention.
    (23, "Attention", {}, [wave(1, 2, 3, 4), wave(1, 2, 5, 4), ramp(1, 2, 5, 2)]),
    (23, "Attention", {"is_causal": 1, "scale": 0.25}, [wave(1, 4, 3, 4), wave(1, 2, 3, 4), ramp(1, 2, 3, 4)]),
    (23, "Attention", {"q_num_heads": 2, "kv_num_heads": 2}, [wave(1, 3, 8), wave(1, 5, 8), ramp(1, 5, 8)]),
    (23, "Attention", {}, [wave(1, 2, 3, 4), wave(1, 2, 3, 4), ramp(1, 2, 3, 4), wave(3, 3)]),
    (23, "Attention", {}, [wave(1, 1, 2, 4), wave(1, 1, 2, 4), ramp(1, 1, 2, 4), f(1, 0, 1, 1, shape=(2, 2), dtype=bool)]),
    (23, "Attention", {}, [wave(1, 1, 2, 4), wave(1, 1, 2, 4), ramp(1, 1, 2, 4), None, wave(1, 1, 3, 4), ramp(1, 1, 3, 4)], 3),
    (23, "Attention", {"softcap": 1.5, "is_causal": 1}, [wave(1, 2, 3, 4), wave(1, 2, 3, 4), ramp(1, 2, 3, 4), wave(3, 3)]),
    (25, "Attention", {"softcap": 2.0, "left_window_size": 1}, [wave(1, 2, 5, 4), wave(1, 2, 5, 4) + 1, wave(1, 2, 5, 4) - 1]),
    (25, "Attention", {"left_window_size": 1}, [wave(1, 2, 5, 4), wave(1, 2, 5, 4) + 1, wave(1, 2, 5, 4) - 1]),
    (25, "Attention", {"left_window_size": 2, "right_window_size": 1, "is_causal": 1}, [wave(1, 2, 5, 4), wave(1, 1, 5, 4) + 1, wave(1, 1, 5, 4) - 1]),
    (25, "Attention", {"right_window_size": 0}, [wave(1, 1, 2, 4), wave(1, 1, 4, 4), wave(1, 1, 4, 4) - 1, wave(2, 4)]),
    (25, "Attention", {"left_window_size": 0, "right_window_size": 1}, [wave(1, 1, 5, 4), wave(1, 1, 2, 4), wave(1, 1, 2, 4) - 1, f(*[1, 0] * 5, shape=(5, 2), dtype=bool)]),
    (25, "Attention", {"left_window_size": 2}, [wave(1, 1, 2, 4), wave(1, 1, 2, 4) + 1, wave(1, 1, 2, 4) - 1, None, wave(1, 1, 3, 4), wave(1, 1, 3, 4) - 2], 3),
    (25, "Attention", {"is_causal": 1}, [wave(1, 1, 2, 4), wave(1, 1, 2, 4) + 1, wave(1, 1, 2, 4) - 1, None, wave(1, 1, 3, 4), wave(1, 1, 3, 4) - 2], 3),
    (23, "RotaryEmbedding", {}, [wave(1, 2, 3, 4), wave(5, 2), ramp(5, 2), i(0, 4, 2, shape=(1, 3))]),
    (23, "RotaryEmbedding", {"interleaved": 1}, [wave(1, 2, 3, 4), wave(1, 3, 2), ramp(1, 3, 2)]),
    (23, "RotaryEmbedding", {"num_heads": 2, "rotary_embedding_dim": 2}, [wave(1, 3, 8), wave(5, 1), ramp(5, 1), i(0, 4, 2, shape=(1, 3))]),
    (20, "Einsum", {"equation": "bij,bjk->bik"}, [wave(2, 2, 3), ramp(2, 3, 2)]),
    (20, "Einsum", {"equation": "ij,kj"}, [wave(2, 3), ramp(4, 3)]),
    # ONNX Runtime's.
    (20, "com.microsoft::TransposeMatMul", {"transB": 1}, [ramp(2, 3), ramp(4, 3)]),
    (20, "com.microsoft::FusedMatMul", {"transB": 1, "alpha": 0.5}, [ramp(2, 3), ramp(4, 3)]),
    (20, "com.microsoft::Gelu", {}, [f(-1, 0.5, 2)]),
    (20, "com.microsoft::FastGelu", {}, [f(-1, 0.5, 2), f(0.5, 1, 2)]),
    (20, "com.microsoft::BiasGelu", {}, [f(-1, 0.5, 2), f(0.5, 1, 2)]),
    (20, "com.microsoft::QuickGelu", {"alpha": 1.5}, [f(-1, 0.5, 2)]),
    (20, "SimplifiedLayerNormalization", {"epsilon": 0.01}, [wave(2, 4), ramp(4)]),
    (20, "com.microsoft::SkipLayerNormalization", {"epsilon": 0.01}, [wave(1, 2, 4), ramp(1, 2, 4), ramp(4), ramp(4), wave(4)]),
    (20, "com.microsoft::SkipLayerNormalization", {}, [wave(1, 2, 4) / 1024, wave(1, 2, 4) / 1024, ramp(4)]),
    (20, "com.microsoft::SkipSimplifiedLayerNormalization", {}, [wave(1, 2, 4) / 1024, wave(1, 2, 4) / 1024, ramp(4)]),
    (20, "SimplifiedLayerNormalization", {}, [wave(2, 4) / 1024, ramp(4)]),
    (20, "com.microsoft::SkipSimplifiedLayerNormalization", {"epsilon": 0.01}, [wave(1, 2, 4), ramp(1, 2, 4), ramp(4)]),
    (20, "com.microsoft::MultiHeadAttention", {"num_heads": 2}, [wave(1, 3, 8), wave(1, 5, 8), ramp(1, 5, 8)]),
    (20, "com.microsoft::MultiHeadAttention", {"num_heads": 2, "scale": 0.25}, [wave(1, 3, 8), wave(1, 3, 8), ramp(1, 3, 8), wave(24)]),
    (20, "com.microsoft::MultiHeadAttention", {"num_heads": 2, "unidirectional": 1}, [wave(1, 3, 8), wave(1, 3, 8), ramp(1, 3, 8)]),
    (20, "com.microsoft::MultiHeadAttention", {"num_heads": 2}, [wave(1, 2, 8), wave(1, 2, 8), ramp(1, 2, 8), None, None, wave(1, 2, 2, 5), wave(1, 2, 3, 4), ramp(1, 2, 3, 4)], 3),
    (20, "com.microsoft::RotaryEmbedding", {}, [wave(1, 3, 8), i(0, 4, 2, shape=(1, 3)), wave(5, 2), ramp(5, 2)]),
    (20, "com.microsoft::RotaryEmbedding", {"interleaved": 1}, [wave(1, 2, 3, 4), i(1), wave(5, 2), ramp(5, 2)]),
    # Reductions.
    (20, "ReduceSum", {}, [wave(2, 3), C([1])]),
    (20, "ReduceSum", {"keepdims": 0}, [i(1, 2, 3, dtype=np.int32)]),
    (20, "ReduceSum", {"noop_with_empty_axes": 1}, [wave(2, 3)]),
    (11, "ReduceSum", {"axes": [0]}, [wave(2, 3)]),
    (18, "ReduceMean", {"keepdims": 0}, [wave(2, 3), C([-1])]),
    (17, "ReduceMean", {"axes": [-1]}, [wave(2, 3)]),
    (20, "ReduceMax", {}, [wave(2, 3), C([0, 1])]),
    (20, "ReduceMin", {}, [wave(2, 3), C([0])]),
    (20, "ReduceProd", {}, [wave(2, 3), C([0])]),
    (20, "ReduceL1", {}, [wave(2, 3), C([0])]),
    (20, "ReduceL2", {}, [wave(2, 3), C([0])]),
    (20, "ReduceSumSquare", {}, [wave(2, 3), C([0])]),
    (20, "ReduceLogSum", {}, [ramp(2, 3, start=1), C([0])]),
    (20, "ReduceLogSumExp", {"keepdims": 0}, [wave(2, 3), C([0])]),
    *[(20, "Reduce" + name, {}, [ramp(2, 3, start=1)]) for name in "Sum Mean Prod Max Min L1 L2 SumSquare LogSum LogSumExp".split()],
    (20, "ArgMax", {"axis": 1}, [wave(2, 3)]),
    (20, "ArgMin", {"axis": 0, "keepdims": 0}, [wave(2, 3)]),
    (20, "CumSum", {}, [wave(2, 3), C(1)]),
    (20, "CumSum", {"exclusive": 1}, [wave(2, 3), C(0)]),
    (20, "CumSum", {"exclusive": 1}, [f(1, INF, 2, -1), C(0)]),
    (20, "CumSum", {"reverse": 1}, [i(1, 2, 3, dtype=np.int32), C(0)]),
    (20, "CumSum", {"reverse": 1, "exclusive": 1}, [i(1, 2, 3), C(0)]),
    (20, "TopK", {}, [f(3, 1, 4, 1.5), C([2])], 2),
    (20, "TopK", {"largest": 0, "axis": 0}, [f(3, 1, 4, 1.5), C([3])], 2),
    # Views.
    (20, "Reshape", {}, [ramp(2, 6), C([0, 3, -1])]),
    (20, "Reshape", {"allowzero": 1}, [ramp(0, 3), C([3, 0])]),
    (20, "Flatten", {"axis": 2}, [ramp(2, 3, 4)]),
    (20, "Flatten", {"axis": 0}, [ramp(2, 3)]),
    (20, "Squeeze", {}, [ramp(1, 2, 1)]),
    (20, "Squeeze", {}, [ramp(1, 2, 1), C([-1])]),
    (11, "Squeeze", {"axes": [0]}, [ramp(1, 2, 1)]),
    (20, "Unsqueeze", {}, [ramp(2, 3), C([0, 3])]),
    (11, "Unsqueeze", {"axes": [1]}, [ramp(2, 3)]),
    (20, "Transpose", {}, [ramp(2, 3, 1)]),
    (20, "Transpose", {"perm": [1, 0, 2]}, [ramp(2, 3, 1)]),
    (20, "Expand", {}, [ramp(3, 1), C([2, 1, 4])]),
    (20, "Shape", {}, [ramp(2, 3)]),
    (20, "Shape", {"start": -1}, [ramp(2, 3)]),
    (20, "Size", {}, [ramp(2, 3)]),
    # Pieces.
    (20, "Slice", {}, [ramp(4, 5), C([1, 0]), C([3, 4]), C([0, 1]), C([1, 2])]),
    (20, "Slice", {}, [ramp(5), C([-3]), C([2**63 - 1])]),
    (20, "Slice", {}, [ramp(5), C([-1]), C([-(2**63)]), C([0]), C([-1])]),
    (20, "Slice", {}, [ramp(5), C([3]), C([0]), C([0]), C([-2])]),
    (9, "Slice", {"starts": [1], "ends": [3], "axes": [1]}, [ramp(2, 4)]),
    (20, "Split", {"num_outputs": 2}, [ramp(4, 2)], 2),
    (20, "Split", {"num_outputs": 3}, [ramp(5)], 3),
    (20, "Split", {"axis": 1}, [ramp(2, 4), C([1, 3])], 2),
    (11, "Split", {"split": [1, 3]}, [ramp(4)], 2),
    (20, "Concat", {"axis": -1}, [ramp(2, 2), ramp(2, 1)]),
    (20, "Tile", {}, [ramp(2, 2), C([2, 1])]),
    (20, "Pad", {}, [ramp(2, 2), C([0, 1, 1, 0]), C(9.0, np.float32)]),
    (20, "Pad", {}, [ramp(2, 2), C([1, 0]), None, C([1])]),
    (20, "Pad", {"mode": "reflect"}, [ramp(2, 3), C([1, 2, 0, 1])]),
    (20, "Pad", {"mode": "reflect"}, [ramp(1, 3), C([0, 4, 0, 5])]),
    (20, "Pad", {"mode": "edge"}, [i(1, 2, 3, 4, shape=(2, 2)), C([1, 0, 2, 1])]),
    (20, "Pad", {"mode": "wrap"}, [ramp(2, 3), C([1, 2, 0, 4])]),
    (18, "Pad", {"mode": "edge"}, [ramp(2, 3), C([2, 1]), None, C([-1])]),
    (9, "Pad", {"mode": "reflect", "pads": [0, 1, 0, 1]}, [ramp(1, 3)]),
    (9, "Pad", {"pads": [0, 1, 0, 1], "value": 2.0}, [ramp(1, 3)]),
    (20, "DepthToSpace", {"blocksize": 2}, [ramp(1, 4, 1, 2)]),
    (13, "SpaceToDepth", {"blocksize": 2}, [ramp(1, 2, 2, 4)]),
    (20, "DepthToSpace", {"blocksize": 2, "mode": "CRD"}, [ramp(1, 8, 1, 2)]),
    # Indices.
    (20, "Gather", {}, [ramp(3, 2), i(2, -1, 0)]),
    (20, "Gather", {"axis": 1}, [ramp(3, 2), C(-1)]),
    (20, "Gather", {"axis": 1}, [ramp(3, 2), i(1, 0, shape=(1, 2))]),
    (20, "GatherElements", {"axis": 1}, [ramp(2, 2), i(0, 0, 1, -2, shape=(2, 2))]),
    (20, "GatherND", {}, [ramp(2, 3), i(0, 1, 1, -1, shape=(2, 2))]),
    (20, "GatherND", {}, [ramp(2, 3), i(1, 0, shape=(2, 1))]),
    (20, "ScatterElements", {"axis": 1}, [ramp(1, 5), i(1, -2, shape=(1, 2)), f(1.5, 2.5, shape=(1, 2))]),
    (20, "ScatterElements", {"reduction": "add"}, [ramp(3), i(1, 1), f(1.5, 2.5)]),
    (20, "ScatterND", {}, [ramp(4, 2), i(2, 0, shape=(2, 1)), wave(2, 2)]),
    (20, "ScatterND", {"reduction": "add"}, [ramp(4), i(2, 0, shape=(2, 1)), f(5, 6)]),
    (20, "OneHot", {}, [i(0, 2, -1), C(3), f(0, 1)]),
    # Creation.
    (20, "ConstantOfShape", {"value": numpy_helper.from_array(np.array([7], np.int64))}, [C([2, 2])]),
    (20, "Range", {}, [C(1), C(8), C(3)]),
    (20, "Range", {}, [C(5), C(1), C(-2)]),
    (20, "Range", {}, [C(0.0, np.float32), C(1.0, np.float32), C(0.25, np.float32)]),
    (20, "EyeLike", {"k": 1}, [ramp(2, 3)]),
    (20, "Trilu", {}, [ramp(3, 3)]),
    (20, "Trilu", {"upper": 0}, [ramp(3, 3), C(-1)]),
    # Windows.
    (22, "Conv", {}, [wave(1, 2, 5), wave(3, 2, 3), wave(3)]),
    (22, "Conv", {"pads": [1, 2], "strides": [2]}, [wave(1, 2, 6), wave(1, 2, 3)]),
    (22, "Conv", {"group": 2, "dilations": [2, 1], "kernel_shape": [2, 2]}, [wave(2, 2, 4, 3), wave(4, 1, 2, 2)]),
    (11, "Conv", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, [wave(1, 1, 4, 5), wave(1, 1, 3, 2)]),
    (11, "Conv", {"auto_pad": "SAME_LOWER"}, [wave(1, 1, 3, 3), wave(1, 1, 2, 2)]),
    (11, "Conv", {"auto_pad": "VALID"}, [wave(1, 1, 2, 3, 2), wave(1, 1, 1, 2, 2)]),
    (22, "Conv", {"strides": [200]}, [wave(1, 1, 400), wave(1, 1, 150)]),
    (22, "ConvTranspose", {}, [wave(1, 2, 3), wave(2, 3, 2), wave(3)]),
    (22, "ConvTranspose", {"strides": [2, 3], "pads": [1, 0, 0, 1]}, [wave(1, 1, 3, 2), wave(1, 2, 3, 3)]),
    (22, "ConvTranspose", {"strides": [2], "output_padding": [1]}, [wave(1, 1, 3), wave(1, 1, 3)]),
    (22, "ConvTranspose", {"strides": [3], "output_shape": [8]}, [wave(1, 1, 3), wave(1, 1, 3)]),
    (11, "ConvTranspose", {"strides": [2], "auto_pad": "SAME_UPPER"}, [wave(1, 1, 3), wave(1, 1, 3)]),
    (11, "ConvTranspose", {"group": 2, "dilations": [2]}, [wave(1, 2, 3), wave(2, 1, 2)]),
    (22, "MaxPool", {"kernel_shape": [2], "strides": [2]}, [wave(1, 2, 5)]),
    (22, "MaxPool", {"kernel_shape": [3], "strides": [2], "pads": [1, 1], "ceil_mode": 1}, [wave(1, 1, 6)]),
    (22, "MaxPool", {"kernel_shape": [2, 2], "dilations": [2, 1]}, [wave(1, 1, 4, 3)]),
    (12, "MaxPool", {"kernel_shape": [1, 1], "strides": [2, 2], "ceil_mode": 1}, [wave(1, 1, 2, 2)]),
    (12, "MaxPool", {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER"}, [wave(1, 1, 3, 3)]),
    (12, "MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}, [wave(2, 2, 4, 4)], 2),
    (12, "MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2], "storage_order": 1}, [wave(1, 1, 4, 4)], 2),
    (12, "MaxPool", {"kernel_shape": [2], "pads": [1, 0]}, [f(3, 1, 4, 1, 5, shape=(1, 1, 5), dtype=np.uint8)]),
    (22, "AveragePool", {"kernel_shape": [2, 2]}, [wave(1, 2, 3, 3)]),
    (22, "AveragePool", {"kernel_shape": [3], "pads": [1, 1], "strides": [2]}, [wave(1, 1, 6)]),
    (22, "AveragePool", {"kernel_shape": [3], "pads": [1, 1], "strides": [2], "count_include_pad": 1}, [wave(1, 1, 6)]),
    (22, "AveragePool", {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}, [wave(1, 1, 6)]),
    (11, "AveragePool", {"kernel_shape": [2], "auto_pad": "SAME_LOWER"}, [wave(1, 1, 3)]),
    (22, "LpPool", {"kernel_shape": [2]}, [wave(1, 2, 4)]),
    (22, "LpPool", {"kernel_shape": [2], "p": 3, "strides": [2]}, [wave(1, 1, 4)]),
    (22, "LpPool", {"kernel_shape": [2], "strides": [2], "p": 1}, [wave(1, 1, 5)]),
    (22, "GlobalAveragePool", {}, [wave(1, 2, 3, 2)]),
    (22, "GlobalMaxPool", {}, [wave(1, 2, 3)]),
    (20, "GlobalLpPool", {}, [wave(1, 2, 3)]),
    # Resampling.
    (9, "Upsample", {}, [ramp(1, 1, 2, 2), C([1, 1, 2, 3], np.float32)]),
    (9, "Upsample", {"mode": "linear"}, [ramp(1, 1, 2, 2), C([1, 1, 2, 2], np.float32)]),
    (10, "Resize", {}, [ramp(1, 1, 2, 3), C([1, 1, 2, 1], np.float32)]),
]

SCALES = [C([1, 1, 2, 1.5], np.float32), C([1, 1, 0.5, 3], np.float32)]
SIZES = [C([1, 1, 5, 2]), C([1, 1, 3, 7])]
TRANSFORMS = ["half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "asymmetric"]


GRID = f(-1.5, -0.9, -0.3, 0, 0.25, 0.8, 1, 1.2, -1, 1, 0.1, -0.4, shape=(1, 2, 3, 2))


def grids():
    """Cases of GridSample: all modes."""
    out = []
    for mode in ("linear", "nearest", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            for align_corners in (0, 1):
                attributes = {"mode": mode, "padding_mode": padding, "align_corners": align_corners}
                out.append((20, "GridSample", attributes, [wave(1, 2, 3, 4), GRID]))
    out.append((16, "GridSample", {"mode": "bicubic"}, [wave(1, 1, 3, 2), GRID]))
    out.append((22, "GridSample", {}, [wave(1, 1, 2, 3, 2), f(-0.5, 0.2, 0.7, 1, -1, 1.1, shape=(1, 1, 1, 2, 3))]))
    return out


def resizes():
    """Cases of Resize: all modes, with scales and with sizes."""
    out = []
    filters = [{"mode": "nearest", "nearest_mode": f"{m}"} for m in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")]
    filters += [{"mode": "linear"}, {"mode": "cubic"}, {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}]
    for attributes in filters:
        for transform in TRANSFORMS:
            attributes = attributes | {"coordinate_transformation_mode": transform}
            out += [(19, "Resize", attributes, [wave(1, 1, 4, 4), None, scales]) for scales in SCALES]
            out += [(19, "Resize", attributes, [wave(1, 1, 4, 4), None, None, sizes]) for sizes in SIZES]
        aligned = attributes | {"coordinate_transformation_mode": "align_corners"}
        out.append((19, "Resize", aligned, [wave(1, 1, 3, 4), None, None, C([1, 1, 5, 1])]))
        cropped = attributes | {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
        roi = C([0, 0, 0.3, -0.2, 1, 1, 0.9, 1.1], np.float32)
        out.append((19, "Resize", cropped, [wave(1, 1, 4, 4), roi, None, C([1, 1, 3, 5])]))
    out.append((18, "Resize", {"axes": [3, 2]}, [wave(1, 1, 4, 4), None, None, C([2, 6])]))
    for policy in ("not_larger", "not_smaller"):
        attributes = {"axes": [2, 3], "keep_aspect_ratio_policy": policy}
        out.append((18, "Resize", attributes, [wave(1, 1, 4, 2), None, None, C([6, 4])]))
    return out



def pairs(values, dtype):
    """All pairs of some values, as two operands."""
    x, y = np.meshgrid(np.array(values, dtype=dtype), np.array(values, dtype=dtype), indexing="ij")
    return x.reshape(-1), y.reshape(-1)


def extremes():
    """Integers at the ends of their dtypes, and floats at NaN, infinities, zeros, subnormal and largest numbers."""
    for dtype in (np.uint8, np.int32, np.int64):
        info = np.iinfo(dtype)
        # Those of i64 that f64 holds.
        ends = [info.min, info.min // 2, 2**62] if dtype == np.int64 else [info.min, info.min + 1, info.max - 1, info.max]
        values = sorted({v for v in (*ends, -info.bits, -7, -1, 0, 1, 2, 7, info.bits - 1, info.bits) if v >= info.min})
        x, y = pairs(values, dtype)
        divides = (y != 0) & ~((x == info.min) & (y.astype(np.int64) == -1))
        for op in ("Add", "Sub", "Mul", "Equal", "Less", "GreaterOrEqual", "Max", "Min", "BitwiseAnd", "BitwiseOr", "BitwiseXor"):
            yield 20, op, {}, [x, y]
        for direction in ("LEFT", "RIGHT"):
            yield 28, "BitShift", {"direction": direction}, [x, y]
            yield 28, "BitShift", {"direction": direction}, [x, C(np.array(info.bits - 1, dtype))]
        yield 20, "Div", {}, [x[divides], y[divides]]
        yield 20, "Mod", {}, [x[divides], y[divides]]
        yield 20, "Mod", {"fmod": 1}, [x[divides], y[divides]]
        for op in ("Abs", "Sign", "BitwiseNot", *(() if dtype == np.uint8 else ("Neg", "Relu"))):
            yield 20, op, {}, [np.array(values, dtype)]
        yield 20, "Clip", {}, [np.array(values, dtype), C(np.array(1, dtype)), C(np.array(info.bits, dtype))]
    yield 11, "BitShift", {"direction": "LEFT"}, [i(1, 255, 3, dtype=np.uint8), i(7, 8, 200, dtype=np.uint8)]
    for dtype in (np.float16, np.float32, np.float64):
        info = np.finfo(dtype)
        sizes = (NAN, INF, 0.0, 1.0, 2.5, float(info.max), float(info.tiny), float(info.tiny) / 4, 7.0)
        values = np.array([sign * size for size in sizes for sign in (1, -1)], dtype=dtype)
        x, y = pairs([NAN, INF, -INF, 0.0, -0.0, -2.5, float(info.max), float(info.tiny) / 4], dtype)
        for op in ("Add", "Sub", "Mul", "Div", "Equal", "Less", "GreaterOrEqual"):
            yield 20, op, {}, [x, y]
        yield 20, "Mod", {"fmod": 1}, [x, y]
        # The sigmoid of f16 has rounded steps in the reference.
        for op in ("Neg", "Abs", "Sign", "Floor", "Ceil", "Round", "Exp", "Log", "Sqrt", "Reciprocal", "Erf", "Tanh", "IsNaN", "IsInf", *(("Sigmoid",) if dtype != np.float16 else ())):
            yield 20, op, {}, [values]
        # The reference has NaN and its position, as NumPy.
        for op in ("ArgMax", "ArgMin"):
            yield 20, op, {"axis": 0}, [values[2:]]
            yield 20, op, {"axis": 0}, [values]
        for op in ("ReduceMax", "ReduceMin"):
            yield 20, op, {"keepdims": 0}, [values]



def recurrent():
    """Layers of 3 steps, a batch of 2, 2 inputs and 2 hidden units."""
    gates = {"RNN": 1, "LSTM": 4, "GRU": 3}
    for version in (7, 14, 22):
        for op, n in gates.items():
            for direction in ("forward", "reverse", "bidirectional"):
                d = 2 if direction == "bidirectional" else 1
                results = 3 if op == "LSTM" else 2
                weights = [wave(d, n * 2, 2) / 3, wave(d, n * 2, 2)[..., ::-1] / 4]
                attributes = {"hidden_size": 2, "direction": direction}
                yield version, op, attributes, [wave(3, 2, 2), *weights], results
                bias, states = wave(d, n * 4) / 5, wave(d, 2, 2) / 6
                cells = [-states, wave(d, 6) / 7] if op == "LSTM" else []
                everything = [wave(3, 2, 2), *weights, bias, i(3, 1, dtype=np.int32), states, *cells]
                yield version, op, attributes, everything, results
                functions = {"RNN": ["Relu"], "LSTM": ["HardSigmoid", "Softsign", "Elu"], "GRU": ["Sigmoid", "LeakyRelu"]}[op]
                others = {"activations": functions * d, "activation_alpha": [0.3, 0.5] * d, "clip": 0.75}
                if op == "LSTM":
                    others |= {"activation_beta": [0.4] * d, "input_forget": 1}
                if op == "GRU":
                    others |= {"linear_before_reset": 1, "activation_alpha": [0.3] * d}
                if op == "RNN":
                    del others["activation_alpha"]
                everything[4] = None
                yield version, op, attributes | others, everything, results
    yield 14, "LSTM", {"hidden_size": 1}, [wave(1, 1, 2), wave(1, 4, 2), wave(1, 4, 1), None, C(np.array([1], np.int32))], 1


def losses_and_moves():
    scores, classes = wave(3, 4, 2), i(1, 0, 3, 2, 1, 1, shape=(3, 2))
    for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
        for version in (12, 13):
            for reduction in ("none", "sum", "mean"):
                yield version, op, {"reduction": reduction}, [scores, classes]
                yield version, op, {"reduction": reduction, "ignore_index": 1}, [scores, classes, f(0.5, 1, 2, 3)]
        # The reference evaluator takes -1 for a missing number here.
        yield 13, op, {"ignore_index": -2}, [wave(2, 3), i(-2, 2)]
    yield 13, "SoftmaxCrossEntropyLoss", {}, [wave(2, 3), i(0, 2)], 2
    points = f(-30000.0, -4.5, -1e-5, 0.0, 1e-6, 0.5, 1.0, 3.0, 1e9, INF, NAN)
    for op, values in (("Sinh", points[1:-3]), ("Cosh", points[1:-3]), ("Asinh", points), ("Acosh", np.append(points[6:], f(-1e5, -1e20, 0.9))), ("Atanh", points[2:7])):
        yield 22, op, {}, [values]
    yield 9, "Shrink", {}, [wave(6)]
    yield 9, "Shrink", {"lambd": 1.5, "bias": 0.5}, [wave(6)]
    yield 28, "SwiGLU", {"alpha": 1.5}, [wave(2, 3), ramp(2, 3)]
    for version, axis in ((13, 0), (13, -1), (11, 1), (11, 0)):
        yield version, "Hardmax", {"axis": axis}, [i(3, 1, 3, 0, 5, 5, shape=(2, 3)).astype(np.float32)]
    yield 13, "SpaceToDepth", {"blocksize": 2}, [ramp(1, 2, 4, 6)]
    yield 18, "CenterCropPad", {}, [ramp(4, 3, 5), C([2, 6, 5])]
    yield 18, "CenterCropPad", {"axes": [-1, 0]}, [ramp(4, 3, 5), C([2, 7])]
    index = i(0, 1, 2, -1, 0, 1, shape=(3, 2))
    for reduction in ("mul", "max", "min"):
        yield 18, "ScatterND", {"reduction": reduction}, [wave(3, 2, 2), index, wave(3, 2) * 2]
    yield 18, "ScatterND", {"reduction": "max"}, [wave(3, 2), i(2, 2, shape=(2, 1)), wave(2, 2) * 3]
    yield 24, "TensorScatter", {}, [wave(2, 4, 3), ramp(2, 2, 3), i(1, 2)]
    yield 24, "TensorScatter", {"mode": "circular", "axis": 1}, [wave(2, 4, 3), ramp(2, 2, 3), i(3, 2)]
    yield 24, "TensorScatter", {}, [wave(2, 4, 3), ramp(2, 2, 3)]
    yield 10, "ReverseSequence", {}, [ramp(4, 3), i(1, 4, 2)]
    yield 10, "ReverseSequence", {"batch_axis": 0, "time_axis": 1}, [ramp(2, 4, 2), i(3, 1)]
    q, k, v = wave(2, 4, 3, 8), wave(2, 2, 5, 8), ramp(2, 2, 5, 8) / 40
    for mode in range(4):
        yield 24, "Attention", {"is_causal": 1, "qk_matmul_output_mode": mode}, [q, k, v, wave(3, 5)], 4
    yield 24, "Attention", {"softcap": 1.5, "qk_matmul_output_mode": 1}, [q, k, v], 4
    yield 24, "Attention", {"qk_matmul_output_mode": 3}, [q, k, v, np.array([[True, False, True, True, False], [False] * 5, [True] * 5])], 4
    yield 24, "Attention", {"is_causal": 1}, [q, k, v, None, None, None, i(4, 5)]
    yield 25, "Attention", {"left_window_size": 1, "right_window_size": 0}, [q, k, v, wave(3, 4), None, None, i(4, 5)]
    past = [wave(2, 2, 3, 8), wave(2, 2, 3, 8)[..., ::-1]]
    yield 24, "Attention", {"is_causal": 1, "qk_matmul_output_mode": 2}, [q, k, v, wave(4, 3, 8), *past], 4


def states():
    q, k, v = wave(2, 3, 8) / 2, wave(2, 3, 4)[..., ::-1] / 3, ramp(2, 3, 6) / 20
    heads = {"q_num_heads": 4, "kv_num_heads": 2}
    past, decay, update = wave(2, 2, 2, 3) / 4, -ramp(2, 3, 2) / 9, ramp(2, 3, 2) / 12
    yield 27, "LinearAttention", heads | {"update_rule": "linear"}, [q, k, v], 2
    yield 27, "LinearAttention", heads | {"update_rule": "gated", "scale": 0.3}, [q, k, v, past, decay], 2
    yield 27, "LinearAttention", heads | {"update_rule": "delta"}, [q, k, v, past, None, update[..., :1]], 2
    yield 27, "LinearAttention", heads, [q, k, v, None, -ramp(2, 3, 4) / 9, update], 2
    x, weight = wave(2, 3, 5), wave(3, 1, 3)
    yield 27, "CausalConvWithState", {}, [x, weight], 2
    yield 27, "CausalConvWithState", {"activation": "silu"}, [x, weight, wave(3), ramp(2, 3, 2)], 2
    for flags in ({}, {"reverse": 1}, {"exclusive": 1}, {"exclusive": 1, "reverse": 1}):
        yield 26, "CumProd", flags, [wave(2, 5), C(np.array(1, np.int64))]
    yield 26, "CumProd", {}, [i(1, 2, 3, 4, dtype=np.int32), C(np.array(0, np.int32))]
    for op in ("ArgMax", "ArgMin"):
        yield 13, op, {"axis": 1, "select_last_index": 1, "keepdims": 0}, [f(1, 3, 3, 1, 0, 0, 5, 5, shape=(2, 4))]
    yield 13, "GatherND", {"batch_dims": 1}, [ramp(2, 3, 2), i(1, -1, shape=(2, 1))]
    yield 13, "GatherND", {"batch_dims": 1}, [ramp(2, 3, 2), i(1, 0, 2, -1, 0, 1, 1, 1, shape=(2, 2, 2))]
    for op in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        yield 17, op, {}, [C(7)]
        yield 17, op, {"periodic": 0, "output_datatype": 11}, [C(6)]
    yield 24, "Attention", {"softmax_precision": 11}, [wave(1, 2, 3, 4), wave(1, 2, 3, 4), wave(1, 2, 3, 4), wave(3, 3)]


def runtime_products():
    for flags in ({"transBatchA": 1}, {"transBatchA": 1, "transA": 1}):
        x = wave(2, 3, 4) if "transA" not in flags else wave(4, 3, 2)
        yield 20, "com.microsoft::FusedMatMul", flags, [x, wave(3, 4, 2)]
    yield 20, "com.microsoft::FusedMatMul", {"transBatchB": 1, "alpha": 0.5}, [wave(3, 2, 4), wave(4, 3, 2)]
    yield 20, "com.microsoft::FusedMatMul", {"transBatchB": 1, "transB": 1}, [wave(3, 2, 4), wave(2, 3, 4)]
    for activation in ("Relu", "Sigmoid", "Tanh"):
        gemm = {"transB": 1, "beta": 0.5, "activation": activation}
        yield 20, "com.microsoft::FusedGemm", gemm, [wave(2, 3), wave(4, 3), wave(4)]
    yield 20, "com.microsoft::FusedGemm", {"activation": "LeakyRelu", "activation_alpha": 0.25}, [wave(2, 3), wave(3, 4)]
    tables = [wave(5, 4), ramp(6, 4) / 9, wave(2, 4) / 3]
    words, segments = i(1, 4, 0, 2, 2, 3, shape=(2, 3), dtype=np.int32), i(0, 1, 1, 0, 0, 1, shape=(2, 3), dtype=np.int32)
    embed = "com.microsoft::EmbedLayerNormalization"
    yield 20, embed, {"epsilon": 0.01}, [words, segments, *tables, wave(4), ramp(4)], 3
    yield 20, embed, {}, [words, None, *tables[:2], None, wave(4), ramp(4), None, i(3, 0, 5, 1, 1, 2, shape=(2, 3), dtype=np.int32)], 3
    product = "com.microsoft::MatMulNBits"
    for bits in (4, 8):
        for rows, block in ((32, 16), (40, 16), (32, 32)):
            n = -(-rows // block)
            sizes = {"K": rows, "N": 3, "bits": bits, "block_size": block}
            x, size = wave(2, rows), block * bits // 8
            packed = ((np.arange(3 * n * size) * 37 + 11) % 256).astype(np.uint8).reshape(3, n, size)
            scales = wave(3 * n) / 50
            yield 20, product, sizes, [x, packed, scales]
            points = (np.arange(3 * -(-n * bits // 8)) * 23 % 256).astype(np.uint8)
            yield 20, product, sizes, [x, packed, scales, points]
            if bits == 4:
                yield 20, product, sizes, [x, packed, scales, wave(3 * n) + 8, None, wave(3)]
    x, packed, scales = wave(2, 32), ((np.arange(48) * 37) % 256).astype(np.uint8).reshape(3, 2, 8), wave(6) / 50
    group = (np.arange(32) % 2).astype(np.int32)
    yield 20, product, {"K": 32, "N": 3, "bits": 4, "block_size": 16}, [x, packed, scales, None, group]


def runtime_attention():
    """Attention ops of ONNX Runtime with all optional operands."""
    mha = "com.microsoft::MultiHeadAttention"
    x = [wave(2, 3, 8), wave(2, 3, 8)[..., ::-1], ramp(2, 3, 8) / 9]
    padding = [
        i(2, 3, dtype=np.int32),
        i(1, 1, 0, 1, 0, 1, shape=(2, 3), dtype=np.int32),
        i(*([1, 0, 0, 1, 1, 0, 1, 1, 1] * 2), shape=(2, 3, 3), dtype=np.int32),
    ]
    for mask in padding[1:]:
        yield 20, mha, {"num_heads": 2}, [*x, None, mask]
        yield 20, mha, {"num_heads": 2, "mask_filter_value": -3.0}, [*x, None, mask, wave(1, 2, 3, 3)]
    yield 20, mha, {"num_heads": 2, "unidirectional": 1}, [*x, None, None, None, wave(2, 2, 4, 4), ramp(2, 2, 4, 4) / 9], 3
    attention = "com.microsoft::Attention"
    w = [wave(2, 3, 4), wave(4, 24) / 3, wave(24)]
    yield 20, attention, {"num_heads": 2}, w
    yield 20, attention, {"num_heads": 2, "unidirectional": 1, "scale": 0.3}, w[:2]
    yield 20, attention, {"num_heads": 2, "qkv_hidden_sizes": [4, 4, 16]}, w
    yield 20, attention, {"num_heads": 2}, [*w, None, wave(2, 2, 2, 2, 4)], 2
    for mask in padding:
        yield 20, attention, {"num_heads": 2}, [*w, mask]
    yield 20, attention, {"num_heads": 2}, [*w, None, None, wave(2, 2, 3, 3)]
    gqa = "com.microsoft::GroupQueryAttention"
    heads = {"num_heads": 4, "kv_num_heads": 2}

    def operands(batch, length, past, last, total, *more, size=16, packed=False):
        q, k, v = wave(batch, length, 4 * size), wave(batch, length, 2 * size)[..., ::-1], ramp(batch, length, 2 * size) / 50
        cache = [None, None] if past is None else [wave(batch, 2, past, size) / 2, -wave(batch, 2, past, size)]
        first = [np.concatenate([q, k, v], axis=2), None, None] if packed else [q, k, v]
        return [*first, *cache, i(*last, dtype=np.int32), C(np.array(total, np.int32)), *more]

    angles = [wave(9, 8), wave(9, 8)[..., ::-1]]
    grown = (2, 1, 5, (5, 3), 6)
    for more in ({}, {"softcap": 2.0}, {"smooth_softmax": 1}, {"scale": 0.2}, {"local_window_size": 2}):
        yield 20, gqa, heads | more, operands(*grown), 3
    # What a sequence does not fill of its cache is not defined. Here it is zero before.
    shared = operands(2, 1, 8, (5, 3), 6)
    for cache in shared[3:5]:
        cache[0, :, 5:], cache[1, :, 3:] = 0, 0
    yield 20, gqa, heads, shared, 3
    yield 20, gqa, heads, operands(2, 3, None, (2, 2), 3), 3
    yield 20, gqa, heads | {"local_window_size": 2}, operands(2, 4, None, (3, 3), 4), 3
    yield 20, gqa, heads, operands(1, 2, 3, (4,), 5), 3
    yield 20, gqa, heads, operands(*grown, packed=True), 3
    for interleaved in (0, 1):
        rotary = heads | {"do_rotary": 1, "rotary_interleaved": interleaved}
        yield 20, gqa, rotary, operands(*grown, *angles), 3
        yield 20, gqa, rotary, operands(1, 3, None, (2,), 3, *angles, packed=True), 3
        yield 20, gqa, rotary, operands(1, 2, 3, (4,), 5, *angles), 3
    positions = i(3, 1, shape=(2, 1))
    yield 20, gqa, heads | {"do_rotary": 1}, operands(*grown, *angles, positions), 3
    yield 20, gqa, heads, operands(*grown, None, None, None, wave(2, 1, 1, 6)), 3
    yield 20, gqa, heads, operands(*grown, None, None, None, None, wave(4)), 3


def quantised():
    """Quantised tensors, with scales for all elements, for slices of an axis, and for blocks."""
    u8, i8, i16, u16 = np.uint8, np.int8, np.int16, np.uint16
    e4m3, e5m2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2

    def ints(*shape, dtype=u8, step=37):
        info = np.iinfo(dtype)
        return (info.min + np.arange(int(np.prod(shape))) * step % (info.max - info.min + 1)).astype(dtype).reshape(shape)

    def one(x, dtype=np.float32):
        return np.array(x, dtype)

    wide = f(-1e9, -300, -1.25, -0.75, -0.25, -0.0, 0.25, 0.75, 1.25, 2.5, 63.6, 127.4, 300, 1e9, INF, -INF)
    for dtype, zero in ((u8, 0), (u8, 128), (i8, 0), (i8, -5), (i16, 9), (u16, 40000)):
        yield 21, "QuantizeLinear", {}, [wide, one(0.5), one(zero, dtype)]
        yield 21, "DequantizeLinear", {}, [ints(3, 11, dtype=dtype), one(0.03), one(zero, dtype)]
    yield 13, "QuantizeLinear", {}, [wave(2, 3), one(0.02)]
    yield 13, "DequantizeLinear", {}, [ints(2, 3), one(0.02)]
    yield 10, "DequantizeLinear", {}, [np.array([5, -(2**31), 2**31 - 1], np.int32), one(0.5)]
    yield 21, "QuantizeLinear", {"output_dtype": 5}, [wave(2, 3), one(0.001)]
    for axis in (0, 1, -1):
        scales = f(0.1, 0.2, 0.05)
        yield 13, "QuantizeLinear", {"axis": axis}, [wave(3, 3, 3), scales, ints(3, step=3)]
        yield 13, "DequantizeLinear", {"axis": axis}, [ints(3, 3, 3, dtype=i8), scales, ints(3, dtype=i8)]
    for axis, shape in ((0, (2, 4)), (1, (5, 2))):
        blocks = {"axis": axis, "block_size": 3 if axis == 0 else 2}
        scales = np.abs(wave(*shape)) + 0.1
        yield 21, "QuantizeLinear", blocks, [wave(5, 4), scales, ints(*shape, dtype=i8, step=3)]
        yield 21, "DequantizeLinear", blocks, [ints(5, 4), scales, ints(*shape, step=5)]
    for dtype in (e4m3, e5m2):
        numbers = f(0, 1, -1.06, 0.0009, 17.5, 447, 465, 60000, 1e6, -1e6, INF, NAN)
        for saturate in (0, 1):
            yield 21, "QuantizeLinear", {"saturate": saturate}, [numbers, one(1.0), one(0, dtype)]
            yield 21, "Cast", {"to": 17 if dtype is e4m3 else 19, "saturate": saturate}, [numbers]
        yield 21, "DequantizeLinear", {}, [f(1, -2, 0.5, 448, dtype=dtype), one(0.25), one(0, dtype)]
    for dtype in (np.float16, ml_dtypes.bfloat16):
        yield 21, "DequantizeLinear", {}, [ints(2, 5, dtype=i8), one(0.1, dtype), one(3, i8)]
        yield 21, "QuantizeLinear", {}, [wave(2, 5, dtype=dtype), one(0.1, dtype), one(3, i8)]
    for numbers in (wave(2, 5), f(0, 0), f(1, 2, 3), f(-1, -2), f(0.5)):
        yield 11, "DynamicQuantizeLinear", {}, [numbers], 3
    a, b = ints(2, 3), ints(3, 4, step=29)
    zero = one(113, u8)
    yield 10, "MatMulInteger", {}, [a, b]
    yield 10, "MatMulInteger", {}, [a, ints(3, 4, dtype=i8), zero, one(-7, i8)]
    yield 10, "MatMulInteger", {}, [ints(2, 2, 3, dtype=i8), b, one(5, i8), ints(4)]
    yield 10, "MatMulInteger", {}, [ints(3), b, zero, zero]
    yield 10, "ConvInteger", {"pads": [1, 1, 1, 1]}, [ints(1, 2, 3, 3), ints(2, 2, 2, 2), zero]
    yield 10, "ConvInteger", {"group": 2, "strides": [2, 1]}, [ints(1, 2, 4, 3), ints(4, 1, 2, 2), zero, one(9, u8)]
    scales = [one(0.02), one(0.03), one(0.4)]
    x, y, z = ([s, one(v, u8)] for s, v in zip(scales, (120, 3, 100)))
    for version in (10, 21):
        yield version, "QLinearMatMul", {}, [a, *x, b, *y, *z]
        yield version, "QLinearMatMul", {}, [a, *x, ints(3, 4, dtype=i8), f(0.02, 0.03, 0.01, 0.05), ints(4, dtype=i8, step=1), *z]
    # Of 7 bits: ONNX Runtime adds pairs of products in 16 bits on some machines.
    w = [ints(4, 1, 2, 2, dtype=i8) // 2, f(0.02, 0.01, 0.03, 0.02), np.zeros(4, i8)]
    bias = np.array([100, -4000, 7, 0], np.int32)
    yield 10, "QLinearConv", {"group": 2}, [ints(1, 2, 4, 3), *x, *w, *z, bias]
    yield 10, "QLinearConv", {"pads": [1, 0, 0, 1]}, [ints(2, 2, 3, 3), *x, ints(2, 2, 2, 2), *y, *z]
    ms = "com.microsoft::"
    yield 20, ms + "QuantizeLinear", {"axis": 0}, [wave(3, 4), f(0.1, 0.2, 0.05), ints(3, step=3)]
    yield 20, ms + "DequantizeLinear", {"axis": 0}, [ints(3, 4, dtype=u16), f(0.1, 0.2, 0.05), ints(3, dtype=u16)]
    yield 20, ms + "MatMulIntegerToFloat", {}, [a, b, one(0.1), one(0.2)]
    yield 20, ms + "MatMulIntegerToFloat", {}, [a, ints(3, 4, dtype=i8) // 2, one(0.1), f(0.1, 0.2, 0.3, 0.4), zero, ints(4, dtype=i8), wave(4)]
    yield 20, ms + "DynamicQuantizeMatMul", {}, [wave(2, 3), ints(3, 4, dtype=i8) // 2, one(0.1)]
    yield 20, ms + "DynamicQuantizeMatMul", {}, [wave(2, 2, 3), b, f(0.1, 0.2, 0.3, 0.4), ints(4), wave(4)]
    turned = {"transA": 1, "transB": 1, "alpha": 0.5}
    yield 20, ms + "QGemm", {}, [a, *x, b, *y, np.arange(4, dtype=np.int32) * 100, *z]
    yield 20, ms + "QGemm", turned, [ints(3, 2), *x, ints(4, 3), *y]
    p, q = ints(2, 4), ints(4, step=51)
    yield 20, ms + "QLinearAdd", {}, [p, *x, q, *y, *z]
    yield 20, ms + "QLinearMul", {}, [p, *x, q, *y, *z]
    yield 20, ms + "QLinearSigmoid", {}, [p, *x, one(1 / 256), one(0, u8)]
    yield 20, ms + "QLinearLeakyRelu", {"alpha": 0.2}, [p, *x, *y]
    yield 20, ms + "QLinearSoftmax", {"opset": 13, "axis": -1}, [p, *x, one(1 / 256), one(0, u8)]
    image = ints(1, 2, 4, 4)
    yield 20, ms + "QLinearAveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}, [image, *x, *y]
    padded = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 0, 0]}
    for more in ({}, {"ceil_mode": 1}, {"count_include_pad": 1}):
        yield 20, ms + "QLinearAveragePool", padded | more, [image, *x, *y]
    yield 20, ms + "QLinearGlobalAveragePool", {}, [image, *x, *y]
    yield 20, ms + "QLinearConcat", {"axis": 1}, [*z, p, *x, ints(2, 3), *y]
    yield 20, ms + "QLinearWhere", {}, [np.array([[True], [False]]), p, *x, ints(2, 4, step=11), *y, *z]


def typed(array):
    dims = ",".join(map(str, array.shape))
    flat = array.reshape(-1).tolist()
    text = " ".join(str(x).lower() if isinstance(x, bool) else repr(x) for x in flat)
    return f"{DTYPES[array.dtype]}[{dims}]: {text}"


def attribute(value):
    if isinstance(value, TensorProto):
        array = numpy_helper.to_array(value)
        return "{" + typed(array) + "}"
    if isinstance(value, str):
        return "'" + value + "'"
    return str(value).replace(" ", "")


def by_runtime(model, feeds):
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def by_evaluator(model, feeds):
    try:
        return ReferenceEvaluator(model).run(None, feeds)
    except Exception:
        # The evaluator does not have all forms of all ops.
        return by_runtime(model, feeds)


def line(version, op, attributes, operands, results=1):
    names = [f"r{k}" for k in range(results)]
    inputs, feeds, values, constants = [], {}, [], []
    for k, operand in enumerate(operands):
        if operand is None:
            inputs.append("")
            continue
        inputs.append(f"x{k}")
        array = operand.array if isinstance(operand, C) else operand
        if isinstance(operand, C):
            constants.append(numpy_helper.from_array(array, f"x{k}"))
        else:
            feeds[f"x{k}"] = array
            values.append(helper.make_tensor_value_info(f"x{k}", helper.np_dtype_to_tensor_dtype(array.dtype), array.shape))
    domain, _, name = op.rpartition("::")
    is_quantised = name.startswith(QUANTISED) or name == "DynamicQuantizeLinear"
    theirs = bool(domain) or is_quantised or name in BY_RUNTIME or name in ("RNN", "LSTM", "GRU") or (name == "BatchNormalization" and version < 14)
    # The reference evaluator has the newest version only.
    theirs = theirs or (name == "Hardmax" and version < 13)
    node = helper.make_node(name, inputs, names, domain=domain, **attributes)
    kind = TensorProto.FLOAT if theirs else TensorProto.UNDEFINED
    integers = ["r1"] if name == "EmbedLayerNormalization" else []
    outputs = [helper.make_tensor_value_info(n, TensorProto.INT32 if n in integers else kind, None) for n in names]
    for output in [] if theirs and not is_quantised else outputs:
        # The dtype of the result follows from the operands.
        output.ClearField("type")
    graph = helper.make_graph([node], "case", values, outputs, constants)
    sets = [helper.make_opsetid("", version), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=10)
    # ONNX Runtime's interface in Python has no narrow floats.
    has_narrow = any(array.dtype.name.startswith(("float8", "bfloat")) for array in feeds.values())
    found = by_runtime(model, feeds) if theirs and not has_narrow else by_evaluator(model, feeds)
    shown = []
    for k, operand in enumerate(operands):
        if operand is None:
            shown.append("-")
        elif isinstance(operand, C):
            shown.append("const " + typed(operand.array))
        else:
            shown.append(typed(operand))
    text = " ".join(f"{k}={attribute(v)}" for k, v in attributes.items())
    return f"{version} {op} {text}".strip() + " | " + "; ".join(shown) + " | " + "; ".join(typed(np.asarray(r)) for r in found)


if __name__ == "__main__":
    print("# Written by ops.py: version, op and attributes | operands | results.")
    for case in [*CASES, *recurrent(), *losses_and_moves(), *states(), *runtime_products(), *runtime_attention(), *resizes(), *grids(), *extremes(), *quantised()]:
        try:
            print(line(*case))
        except Exception as error:  # Shows which case the evaluator refuses.
            print(f"{case[:3]}: {error}", file=sys.stderr)
