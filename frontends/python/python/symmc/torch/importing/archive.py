"""Exported programs as files that symmc reads, for all supported versions of PyTorch."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import math
import zipfile

import torch
from torch.export import ExportedProgram

from symmc.torch.graphs.nodes import OPERATOR
from symmc.torch.settings.versions import VERSION

_RAW = (2, 9)
"""The first version whose ``torch.export.save`` stores raw tensors. Earlier ones pickle them, which symmc does not read."""


_ROUNDING = {math.ceil, math.floor, round}
"""Functions of sizes that graphs may use and symmc reads, but PyTorch's format cannot hold."""


def serialize_exported(exported: ExportedProgram) -> bytes:
    for node in exported.graph.nodes:
        if OPERATOR in node.meta:
            # The format keeps this entry of the metadata.
            node.meta["custom"] = {**node.meta.get("custom", {}), OPERATOR: node.meta[OPERATOR]}
    with _rounding():
        if VERSION < _RAW:
            return _written(exported)
        file = io.BytesIO()
        torch.export.save(exported, file)
        return file.getvalue()


@contextlib.contextmanager
def _rounding():
    """Makes PyTorch store rounding functions in the same way as other functions."""
    from torch._export.serde import serialize

    known = getattr(serialize, "_SYM_OPS", set())
    new = _ROUNDING - known
    known |= new
    try:
        yield
    finally:
        known -= new


class _Complex(str):
    """A complex number in a field of the format that holds text."""


@contextlib.contextmanager
def _odd_numbers():
    """Makes PyTorch 2.8 store complex numbers and NaN as later versions do."""
    from torch._export.serde import serialize

    serializer, as_json = serialize.GraphModuleSerializer, serialize._dataclass_to_dict
    known = serializer.serialize_input

    def of_input(self, given, *more):
        if isinstance(given, complex):
            return serialize.Argument.create(as_string=_Complex(given))
        return known(self, given, *more)

    def of_value(value):
        if isinstance(value, serialize.Argument) and isinstance(value.value, _Complex):
            number = complex(value.value)
            return {"as_complex": {"real": of_value(number.real), "imag": of_value(number.imag)}}
        return "NaN" if isinstance(value, float) and math.isnan(value) else as_json(value)

    serializer.serialize_input, serialize._dataclass_to_dict = of_input, of_value
    try:
        yield
    finally:
        serializer.serialize_input, serialize._dataclass_to_dict = known, as_json


def _written(exported: ExportedProgram) -> bytes:
    """The file in the layout of later versions of PyTorch: the program as this version writes it, and raw tensors."""
    from torch._export.serde.serialize import serialize

    with _odd_numbers():
        text = serialize(exported).exported_program
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for entry, content in [("archive_format", "pt2"), ("byteorder", "little"), ("models/model.json", text)]:
            archive.writestr(f"model/{entry}", content)
        _put(archive, "weights", "weight", exported.state_dict)
        _put(archive, "constants", "tensor", exported.constants)
    return file.getvalue()


def _put(archive: zipfile.ZipFile, kind: str, prefix: str, tensors: dict) -> None:
    from torch._export.serde.serialize import _TORCH_TO_SERIALIZE_DTYPE

    config = {}
    for number, (name, tensor) in enumerate(tensors.items()):
        if not isinstance(tensor, torch.Tensor):
            continue
        path, whole = f"{prefix}_{number}", tensor.detach().cpu().contiguous()
        data = ctypes.string_at(whole.data_ptr(), whole.nbytes) if whole.numel() else b""
        archive.writestr(f"model/data/{kind}/{path}", data)
        meta = {
            "dtype": int(_TORCH_TO_SERIALIZE_DTYPE[tensor.dtype]),
            "sizes": [{"as_int": size} for size in whole.shape],
            "requires_grad": tensor.requires_grad,
            "device": {"type": "cpu", "index": None},
            "strides": [{"as_int": stride} for stride in whole.stride()],
            "storage_offset": {"as_int": 0},
            "layout": 7,
        }
        is_param = isinstance(tensor, torch.nn.Parameter)
        config[name] = {"path_name": path, "is_param": is_param, "use_pickle": False, "tensor_meta": meta}
    archive.writestr(f"model/data/{kind}/model_{kind}_config.json", json.dumps({"config": config}))
