"""Writes `tests/suite/schemas.txt`: the schemas of all ops that have rules, which the tests call with odd arguments.

    python3 schemas.py ../src/ops > ../tests/suite/schemas.txt
"""

import importlib
import pathlib
import re
import sys

import torch

for module in (
    "torch.distributed",
    "torch.distributed._functional_collectives",
    "torch.distributed._symmetric_memory",
    "torch.distributed.tensor",
    "transformers.integrations.moe",
):
    importlib.import_module(module)

rows = set()
for file in pathlib.Path(sys.argv[1]).rglob("*.rs"):
    text = file.read_text()
    # A row names several ops, and its string may continue on the next line.
    for names in re.findall(r'row\w*\(\s*"([^"]+)"', text):
        rows |= set(names.replace("\\", " ").split())
    rows |= set(re.findall(r'"(aten\._foreach_\w+)" =>', text))

for schema in sorted(torch._C._jit_get_all_schemas(), key=str):
    op = schema.name.replace("::", ".")
    writes = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    # TorchScript's ops on numbers, strings and lists do not occur in programs.
    if "Tensor" not in str(schema) and not re.match(r"aten\.(sym|_assert|_functional)", op):
        continue
    if op in rows or f"{op}.{schema.overload_name or 'default'}" in rows:
        # An op that writes uses the rule of its functional counterpart.
        if not writes or op.startswith("symm_mem"):
            print(re.sub(r"\b(NoneType|__torch__[\w.]*)\b", "Any", str(schema)))
