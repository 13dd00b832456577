"""Archives of exported programs without what a repository should not hold: weights, samples, and paths of the machine."""

import io
import json
import zipfile

import torch


def without_traces(value):
    """A program's JSON without the source lines of its nodes."""
    if isinstance(value, dict):
        return {k: without_traces(v) for k, v in value.items() if k != "stack_trace"}
    return [without_traces(v) for v in value] if isinstance(value, list) else value


def stripped(program, out):
    """Saves a program without traces, and without the blobs of its weights and samples. These lie next to it."""
    whole = io.BytesIO()
    torch.export.save(program, whole)
    strip_archive(whole, out)


def strip_archive(whole, out):
    """Copies an archive in the same way."""
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
