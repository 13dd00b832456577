"""Writes `src/effects.txt`: the effects of the ops that PyTorch registers, besides their results.

    python3 effects.py > ../src/effects.txt

An exported program names its ops but has no schemas, so the file does not say what an op writes. Each line of the
table is one of these:

    write OP OVERLOADS ARGUMENTS FUNCTIONAL [+N] [=ARGUMENTS] [?FLAG]
        These overloads write these arguments. FUNCTIONAL is the counterpart that returns the new contents as results:
        `-` if the op has none, without an overload if the overload is the same, and without an op if the op is the same.
        With +N the op has N results besides the written arguments. Otherwise its results are all arguments that it
        wrote, or those after `=`. With ?FLAG the op writes only if the argument FLAG is true.
    resize OPS      ops that change the shape, strides or storage of an operand, but not its elements
    random OPS      ops that draw random numbers (the tag `nondeterministic_seeded`)
    effect OPS      ops with an effect that no result shows
    view OPS        ops whose results are views of operands
    pure OPS        ops without effects besides their results
"""

import importlib
import re

import torch

# Modules that register ops when they are imported.
for module in (
    "torch.distributed",
    "torch.distributed._functional_collectives",
    "torch.distributed._symmetric_memory",
    "torch.distributed.tensor",
    "torch.ao.quantization.fx._decomposed",
):
    importlib.import_module(module)

NAMESPACES = "aten prims _c10d_functional _c10d_functional_autograd c10d symm_mem _dtensor fsdp inductor \
quantized quantized_decomposed rngprims mkldnn onednn mkldnn_prepacked".split()

# Ops that only other versions of PyTorch have, with what they write and their counterparts.
OTHER_VERSIONS = [("symm_mem.nccl_all_to_all_permute", "out -")]

# Ops that write although their schemas do not say so: written arguments, number of other results, flag.
STATISTICS = ["running_mean", "running_var"]
UNSAID = {
    "aten.batch_norm.default": (STATISTICS, 1, "training"),
    "aten.native_batch_norm.default": (STATISTICS, 3, "training"),
    "aten.cudnn_batch_norm.default": (STATISTICS, 4, "training"),
    "aten.miopen_batch_norm.default": (STATISTICS, 3, "training"),
    "aten._batch_norm_impl_index.default": (STATISTICS, 5, "training"),
    "aten._native_batch_norm_legit.default": (STATISTICS, 3, "training"),
    "aten.instance_norm.default": (STATISTICS, 1, "use_input_stats"),
    "aten._no_grad_embedding_renorm_.default": (["weight"], 0, None),
    "symm_mem.one_shot_all_reduce_copy.default": (["symm_buffer"], 1, None),
    "symm_mem.one_shot_all_reduce_copy_out.default": (["out", "symm_buffer"], 0, None),
}

# Ops, and whole namespaces of ops, with effects that neither results nor written arguments show.
EFFECTS = """inductor.resize_storage_bytes_ inductor.accumulate_grad_ aten.record_stream aten.retain_grad
_c10d_functional.batch_p2p_ops _c10d_functional.isend _c10d_functional.irecv symm_mem.get_remote_tensors
symm_mem.nvshmem_put symm_mem.nvshmem_get symm_mem.nvshmem_get_out symm_mem.nccl_put symm_mem.nccl_get
symm_mem.nccl_get_out symm_mem.stream_write_value32_ symm_mem.memcpy_to_multicast_""".split()
EFFECT_NAMESPACES = ["c10d"]

# Pure ops of packages outside of PyTorch.
PACKAGES = ["transformers.grouped_mm_fallback", "transformers.grouped_mm_fallback_backward"]


def is_tensor_op(schema):
    """Whether the op can occur in programs, in contrast to TorchScript's ops on lists, dicts and strings."""
    return any("Tensor" in str(a.type) for a in [*schema.arguments, *schema.returns])


def written(schema):
    return [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def returned_arguments(schema):
    """The written arguments that the op returns, in order."""
    aliases = {frozenset(a.alias_info.before_set): a.name for a in schema.arguments if a.alias_info is not None}
    alias = [r.alias_info for r in schema.returns if r.alias_info is not None and r.alias_info.is_write]
    return [aliases[frozenset(a.before_set)] for a in alias]


def signature(schema, without=()):
    return sorted((a.name, str(a.type)) for a in schema.arguments if a.name not in without)


def tags(target):
    namespace, op, overload = target.split(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), op), overload).tags
    except (AttributeError, RuntimeError):
        return []


schemas = {}
for s in torch._C._jit_get_all_schemas():
    namespace = s.name.split("::")[0]
    if namespace in NAMESPACES and is_tensor_op(s):
        schemas[f"{s.name.replace('::', '.')}.{s.overload_name or 'default'}"] = s
overloads = {}
for target in schemas:
    overloads.setdefault(target.rsplit(".", 1)[0], []).append(target)


def functional(target, schema, arguments):
    """The functional counterpart. It has the same arguments, or the same without the written ones."""
    op, overload = target.rsplit(".", 1)
    namespace, name = op.split(".", 1)
    dunder = re.fullmatch(r"__i(\w+)__", name)
    bare = f"__{dunder[1]}__" if dunder else name.removesuffix("_")
    for candidate in (f"{namespace}.{bare}", f"{namespace}.{name.removesuffix('_out')}", op):
        # The same overload is preferred. Others may differ in types only.
        order = sorted(overloads.get(candidate, []), key=lambda t: t.rsplit(".", 1)[1] != overload)
        for other in order:
            if other == target or written(schemas[other]) or len(schemas[other].returns) != len(arguments):
                continue
            # The operand of `dropout` is called `input`, that of `dropout_` is `self`.
            own = signature(schemas[other])
            renamed = sorted(("self" if name == "input" else name, kind) for name, kind in own)
            if any(form in (signature(schema), signature(schema, arguments)) for form in (own, renamed)):
                same = other.rsplit(".", 1)[1] == overload
                return candidate if same else other.removeprefix(op)
    return "-"


writes = {}
kinds = {kind: set() for kind in ("resize", "random", "effect", "view", "pure")}
for target, schema in sorted(schemas.items()):
    op, overload = target.rsplit(".", 1)
    own_tags = {t.name for t in tags(target)}
    arguments, own, flag = UNSAID.get(target, (written(schema), 0, None))
    if op.split(".")[0] in EFFECT_NAMESPACES or op in EFFECTS or not (arguments or schema.returns):
        kinds["effect"].add(op)
        continue
    # `detach_` only changes the flow of gradients.
    if "inplace_view" in own_tags and op != "aten.detach_" or op in ("aten.set_", "aten.resize_", "prims.resize", "prims.as_strided"):
        kinds["resize"].add(op)
        continue
    if "nondeterministic_seeded" in own_tags:
        kinds["random"].add(op)
    if not arguments:
        kinds["pure"].add(op)
        if any(r.alias_info is not None for r in schema.returns):
            kinds["view"].add(op)
        continue
    if target not in UNSAID:
        fresh = [r for r in schema.returns if r.alias_info is None or not r.alias_info.is_write]
        own = len([r for r in fresh if "Tensor" in str(r.type)])
        if own and own != len(schema.returns):
            raise SystemExit(f"{target}: results of its own beside written ones")
    extra = ([f"+{own}"] if own else []) + ([f"?{flag}"] if flag else [])
    returned = [] if own else returned_arguments(schema)
    if returned != arguments[: len(returned)]:
        extra.append("=" + ",".join(returned))
    counterpart = "-" if own else functional(target, schema, arguments)
    row = (op, " ".join([",".join(arguments), counterpart, *extra]))
    writes.setdefault(row, []).append(overload)

# An op counts as pure if none of its overloads is anything else; ops that write are listed by overload.
for kind in ("resize", "random", "effect"):
    kinds["pure"] -= kinds[kind]
kinds["pure"] |= set(PACKAGES)

writes |= {row: ["default"] for row in OTHER_VERSIONS if row not in writes}

print(f"# By tools/effects.py, from the schemas of PyTorch {torch.__version__.split('+')[0]}.")
for (op, rest), names in sorted(writes.items()):
    print("write", op, ",".join(names), rest)
for kind, ops in kinds.items():
    line = kind
    for op in sorted(ops):
        if len(line) + len(op) > 118:
            print(line)
            line = kind
        line += " " + op
    print(line)
