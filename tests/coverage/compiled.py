#!/usr/bin/env python3
"""Runs models under `torch.compile(backend="symmc")` against eager: `python3 tests/coverage/compiled.py [PATTERN...]`.

The models are all of transformers that the tasks below name, each made tiny by the names of its configuration's fields, and the
modules of `modules.py`. A case is `TASK.NAME.WHAT`; PATTERNs say which to run. `infer` runs one compiled model at 7, 2 and 100
tokens, or on batches of images, `sizes` takes the extents of images for unknown as well, `train` compares gradients, `generate` the
tokens of a static cache. Every case is a process of its own, forked once all is imported, with a limit of time. Cases count as `ok`, `unknown` (operators), `refused`, `wrong`, `crashed`, `slow`, or as
`unbuilt` where eager does not run, or `apart` where PyTorch's own
`aot_eager` differs from eager as well; what stands in the way is counted by how many cases it hits. Exit code 1 if any is wrong or
crashed. `--device cuda` runs them on a GPU, and `--dtype bfloat16` in that type, where results and gradients may be twice as far from
eager's in f32 as its own in that type are.
"""

import argparse
import collections
import copy
import fnmatch
import importlib
import inspect
import os
import re
import signal
import sys
import time
import warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import torch
import transformers
from torch.utils import _pytree as pytree
from transformers.models.auto import configuration_auto, modeling_auto

import symmc.torch

SEED, VOCABULARY, TOKENS = 5, 64, (7, 2, 100)

# Fields of configurations, by pattern, with what makes a model tiny. The first that matches counts.
SIZES = [
    (r"vocab_size$|vocab_size_per_layer_input", VOCABULARY),
    (r"(hidden_size|d_model|n_embd|embed_dim|dim|model_dim|embedding_size|hidden_dim|word_embed_proj_dim|projection_dim|"
     r"dim_model|encoder_hidden_size|emb_dim|state_size_of_embedding|attention_hidden_size|hidden_size_per_layer_input)$", 32),
    (r"(intermediate_size|ffn_dim|d_ff|n_inner|ffn_hidden_size|mlp_dim|dim_ff|dense_ffn|encoder_ffn_dim|decoder_ffn_dim|d_inner|"
     r"moe_intermediate_size|shared_expert_intermediate_size|intermediate_size_mlp|ffn_intermediate|shared_intermediate_size|"
     r"intermediate_dim)$", 48),
    (r"(num_hidden_layers|n_layers?|num_layers|encoder_layers|decoder_layers|num_decoder_layers|depth|num_encoder_layers)$", 2),
    (r"(num_key_value_heads|num_kv_heads|multi_query_group_num|num_query_groups)$", 2),
    (r"(num_attention_heads|n_heads?|num_heads|encoder_attention_heads|decoder_attention_heads|n_attention_heads|"
     r"num_decoder_attention_heads|num_encoder_attention_heads)$", 4),
    (r"(head_dim|d_kv|attention_head_dim|global_head_dim|kv_channels)$", 8),
    (r"(num_experts|num_local_experts|n_routed_experts|moe_num_experts)$", 4),
    (r"(num_experts_per_tok(en)?|moe_k|moe_topk|top_k_experts|num_experts_per_token)$", 2),
    (r"(n_group|topk_group|num_expert_group)$", 1),
    (r"(q_lora_rank|kv_lora_rank)$", 16),
    (r"(qk_rope_head_dim|qk_nope_head_dim|v_head_dim)$", 8),
    (r"(first_k_dense_replace)$", 1),
    (r"(max_position_embeddings|n_positions|n_ctx|max_source_positions|max_target_positions|max_sequence_length|context_length)$", 160),
    (r"(sliding_window|attention_window|local_attention|window_size)$", 4),
    (r"(image_size)$", 16),
    (r"(patch_size)$", 8),
    (r"(.*dropout.*|.*_pdrop|layerdrop|drop_path_rate|.*jitter.*)$", 0.0),
    (r"(bos_token_id)$", 1),
    (r"(eos_token_id)$", 2),
    (r"(pad_token_id)$", 0),
    (r"(decoder_start_token_id)$", 1),
]

TASKS = {
    "causal": (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, ("infer", "train", "generate")),
    "masked": (modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, ("infer", "train")),
    "classes": (modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES, ("infer", "train")),
    "seq2seq": (modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, ("infer", "train")),
    "image": (modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES, ("infer", "sizes", "train")),
    "masked_image": (modeling_auto.MODEL_FOR_MASKED_IMAGE_MODELING_MAPPING_NAMES, ("infer", "sizes", "train")),
    "detection": (modeling_auto.MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES, ("infer", "sizes", "train")),
    "segmentation": (modeling_auto.MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES, ("infer", "sizes", "train")),
    "universal": (modeling_auto.MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES, ("infer", "sizes", "train")),
    "depth": (modeling_auto.MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES, ("infer", "sizes", "train")),
    "video": (modeling_auto.MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES, ("infer", "sizes", "train")),
    "audio": (modeling_auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES, ("infer", "train")),
    "ctc": (modeling_auto.MODEL_FOR_CTC_MAPPING_NAMES, ("infer", "train")),
    "speech": (modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES, ("infer", "train")),
    "zero_shot": (modeling_auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES, ("infer",)),
}


# The same where the numbers of a model's stages depend on each other: only what stages repeat, and the image.
STAGES = [
    (r"(num_hidden_layers|n_layers?|num_layers|encoder_layers|decoder_layers|num_decoder_layers|num_encoder_layers)$", 2),
    (r"(depths?|num_block_repeats|layer_depths|num_encoder_blocks_repeats)$", 1),
    (r"(ffn_dim|intermediate_size|encoder_ffn_dim|decoder_ffn_dim)$", 48),
    (r"(image_size)$", 64),
    (r"(num_queries)$", 10),
    (r"(.*dropout.*|.*_pdrop|layerdrop|drop_path_rate|.*jitter.*)$", 0.0),
]


WIDTHS = [one for one in SIZES if not re.search("layers|image_size", one[0])] + [(r"(image_size)$", 64)]
"""The same where a configuration names layers by their numbers."""

EACH_HEAD = [(r"(num_key_value_heads)$", 4), *SIZES]
"""The same where each head has keys and values of its own, as in latent attention."""

OWN = {
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1},
    "falcon_h1": {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma4_unified_assistant": {"num_kv_shared_layers": 0},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {"mamba_n_heads": 4, "mamba_d_head": 16},
    "helium": {"head_dim": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"qk_nope_head_dim": 16, "qk_rope_head_dim": 16},
    "mamba2": {"head_dim": 16, "n_groups": 2},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {"mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 2},
    "reformer": {"is_decoder": True},
}
"""Fields that depend on others."""

MOST, MOST_OF_STAGES = 8_000_000, 60_000_000
"""The largest numbers of parameters."""


class Unbuilt(Exception):
    """Eager itself does not run."""


def shrink(config, sizes=SIZES, seen=()):
    """Makes a configuration tiny, and those within it."""
    for name, value in list(vars(config).items()):
        if isinstance(value, transformers.PretrainedConfig):
            if not any(value is other for other in seen):
                shrink(value, sizes, (*seen, config))
            continue
        plain = name.lstrip("_")
        if plain == "head_dim" and value is None:
            setattr(config, name, 8)
        for pattern, tiny in sizes:
            if re.fullmatch(rf"(.*_)?{pattern}", plain) or re.fullmatch(pattern, plain):
                _shrink_field(config, name, value, tiny)
                break
        else:
            per_layer = plain.endswith(("layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers"))
            if per_layer and isinstance(value, (list, tuple)) and len(value) > 2:
                # Kinds of layers are kept as far as two layers go.
                kinds = list(dict.fromkeys(value)) if plain != "no_rope_layers" else list(value)
                tiny_list = (kinds + list(value))[:2]
                try:
                    setattr(config, name, tiny_list)
                except Exception:
                    pass


def _shrink_field(config, name, value, tiny):
    """Sets one field where it is a number, or a list of the numbers of stages, and smaller so."""
    if isinstance(value, (list, tuple)) and re.search("depth|repeats", name) and all(isinstance(one, int) for one in value):
        setattr(config, name, [min(one, max(tiny, 1)) for one in value])
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    if isinstance(tiny, float) or "token_id" in name or value > tiny:
        try:
            setattr(config, name, tiny)
        except Exception:
            pass


def built(task, kind):
    """A model with small random weights that runs: of the tiniest configuration, or of one whose stages stay as they are."""
    why = None
    for sizes, attention in ((SIZES, "sdpa"), (EACH_HEAD, "sdpa"), (STAGES, "sdpa"), (STAGES, "eager"), (WIDTHS, "eager")):
        try:
            model = _built(task, kind, sizes, attention)
            with torch.no_grad():
                model(**inputs(model, TOKENS[0]))
            return model
        except Exception as error:
            why = error
    raise why


def of_backbone(kind):
    """Fields of a configuration whose backbone is one of another package by default."""
    if kind not in ("detr", "conditional_detr", "deformable_detr", "dab-detr", "table-transformer"):
        return {}
    stages = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1], out_features=["stage4"])
    if kind == "deformable_detr":
        stages = transformers.ResNetConfig(**{**stages.to_dict(), "out_features": ["stage2", "stage3", "stage4"]})
    return {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": stages}


def _built(task, kind, sizes, attention):
    config = configuration_auto.CONFIG_MAPPING[kind](**of_backbone(kind))
    shrink(config, sizes)
    for name, value in OWN.get(kind, {}).items():
        setattr(config, name, value)
    config.use_cache = False
    architecture = TASKS[task][0][kind]
    if isinstance(architecture, (tuple, list)):
        architecture = architecture[0]
    cls = getattr(transformers, architecture)
    wanted = getattr(cls, "config_class", None)
    if wanted is not None and not isinstance(config, wanted):
        config = config.get_text_config()
    config._attn_implementation = attention if getattr(cls, "_supports_sdpa", False) else "eager"
    with torch.device("meta"):
        size = sum(p.numel() for p in cls(config).parameters())
    if size > (MOST if sizes in (SIZES, EACH_HEAD) else MOST_OF_STAGES):
        raise Unbuilt(f"{size} parameters")
    torch.manual_seed(SEED)
    model = cls(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                # What comes out of convolutions is as large as what went in.
                fan = weight[0].numel()
                weight.normal_(0.0, (2 / fan) ** 0.5 if weight.dim() > 2 else min(0.15, fan**-0.5))
    return model


def inputs(model, tokens):
    """Arguments of a model by the names that its forward has."""
    takes = inspect.signature(model.forward).parameters
    given = {}
    if "input_ids" in takes:
        given["input_ids"] = torch.randint(3, VOCABULARY, (2, tokens))
    if "decoder_input_ids" in takes:
        given["decoder_input_ids"] = torch.randint(3, VOCABULARY, (2, tokens))
    # Models that write are given text alone, where they take it.
    writes = type(model).__name__.endswith(("ForConditionalGeneration", "ForCausalLM")) and "input_ids" in given
    if "pixel_values" in takes and not (writes and takes["pixel_values"].default is None):
        vision = getattr(model.config, "vision_config", model.config)
        size = getattr(vision, "image_size", 64)
        size = size if isinstance(size, (tuple, list)) else (size, size)
        frames = [] if "Video" not in type(model).__name__ else [getattr(vision, "num_frames", 4)]
        given["pixel_values"] = torch.randn(tokens % 6 + 1, *frames, getattr(vision, "num_channels", 3), *size)
        if "input_ids" in given:
            given["pixel_values"] = given["pixel_values"][:1].repeat(2, *[1] * (given["pixel_values"].dim() - 1))
    if "input_values" in takes:
        bins = getattr(model.config, "num_mel_bins", None)
        shape = (400 + 320 * tokens,) if bins is None else (getattr(model.config, "max_length", 64), bins)
        given["input_values"] = torch.randn(2, *shape)
    if "input_features" in takes:
        given.pop("input_ids", None)
        bins = getattr(model.config, "num_mel_bins", 80)
        length = 2 * getattr(model.config, "max_source_positions", 16)
        given["input_features"] = torch.randn(2, bins, length)
    if "use_cache" in takes:
        given["use_cache"] = False
    return given


def floats(result):
    """The tensors of a result that have fractions."""
    return [leaf for leaf in pytree.tree_leaves(_plain(result)) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def _plain(result):
    return tuple(result.values()) if isinstance(result, transformers.utils.ModelOutput) else result


def distance(found, expected):
    """The largest difference of results, relative to the largest of each, or of all where these are below 1."""
    if len(found) != len(expected):
        return float("inf")
    worst = 0.0
    least = min(1.0, max((_largest(b) for b in expected), default=1.0)) or 1.0
    for a, b in zip(found, expected):
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        odd = ~torch.isfinite(b)
        if not torch.equal(odd, ~torch.isfinite(a)) or not torch.equal(torch.nan_to_num(a[odd], 7.0), torch.nan_to_num(b[odd], 7.0)):
            return float("inf")
        a, b = a[~odd].double(), b[~odd].double()
        if a.numel():
            worst = max(worst, float((a - b).abs().max()) / max(least, _largest(b)))
    return worst


def _largest(tensor):
    """The largest absolute value that is a number."""
    values = tensor[torch.isfinite(tensor)]
    return float(values.abs().max()) if values.numel() else 0.0


def compiled(function, options, dynamic=None):
    if options is None:
        return torch.compile(function, backend="aot_eager", dynamic=dynamic)
    return torch.compile(function, backend="symmc", dynamic=dynamic, options=options)


def infer(model, given, sizes, options, dynamic):
    """The largest difference over sizes, of one compiled function."""
    run, worst = compiled(model, options, dynamic), 0.0
    wide = copy.deepcopy(model).float() if is_narrow(model) else None
    with torch.no_grad():
        for tokens in sizes:
            torch.manual_seed(tokens)
            kwargs = given(model, tokens)
            try:
                expected = floats(model(**kwargs))
                exact = floats(wide(**moved(kwargs, dtype=torch.float32))) if wide else None
            except Exception as error:
                raise Unbuilt(f"at {tokens}: {type(error).__name__}: {error}") from error
            found = floats(run(**kwargs))
            worst = max(worst, beyond(found, expected, exact) if exact else distance(found, expected))
    return worst


def is_narrow(model):
    return any(weight.dtype in (torch.bfloat16, torch.float16) for weight in model.parameters())


def beyond(found, expected, exact):
    """How far results of a narrow type are off beyond twice what eager's in that type are."""
    if [one.dtype for one in found] != [one.dtype for one in expected]:
        return float("inf")
    found, expected = ([one.float() for one in results] for results in (found, expected))
    exact = [one.float() for one in exact]
    return max(0.0, distance(found, exact) - 2 * distance(expected, exact) - 1e-2)


def moved(given, device=None, dtype=None):
    """Arguments on a device, those with fractions in a type."""
    def one(value):
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)

    return pytree.tree_map(one, given)


def loss_of(result):
    return sum(part.float().square().mean() for part in floats(result) if part.requires_grad)


def train(model, given, options):
    """The largest difference of gradients."""
    torch.manual_seed(1)
    kwargs = given(model, TOKENS[0])
    model.requires_grad_(True)
    try:
        expected = gradients(model, model, kwargs)
        wide = copy.deepcopy(model).float() if is_narrow(model) else None
        exact = gradients(wide, wide, moved(kwargs, dtype=torch.float32)) if wide else None
    except Exception as error:
        raise Unbuilt(f"{type(error).__name__}: {error}") from error
    found = gradients(compiled(model, options), model, kwargs)
    if found.keys() != expected.keys():
        return float("inf")
    found = [found[name] for name in expected]
    if exact:
        return beyond(found, list(expected.values()), [exact[name] for name in expected])
    return distance(found, list(expected.values()))


def gradients(run, model, kwargs):
    """The gradients of a model's parameters."""
    model.zero_grad(set_to_none=True)
    loss_of(run(**kwargs)).backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def generate(model, options):
    """Whether tokens of a static cache are those of eager. In a narrow type the largest of several logits may be equal but for
    rounding: there the logits of the first token that differs are compared, which have the same tokens before them."""
    model.config.use_cache = True
    configuration = model.generation_config
    configuration.eos_token_id, configuration.pad_token_id = None, 0
    torch.manual_seed(1)
    prompt = torch.randint(3, VOCABULARY, (2, 5)).to(model.device)
    how = dict(do_sample=False, cache_implementation="static", disable_compile=True, output_logits=True,
               return_dict_in_generate=True)
    try:
        expected = model.generate(prompt, max_new_tokens=6, **how)
    except Exception as error:
        raise Unbuilt(f"{type(error).__name__}: {error}") from error
    wide = copy.deepcopy(model).float() if is_narrow(model) else None
    model.forward = compiled(model.forward, options)
    found = model.generate(prompt, max_new_tokens=6, **how)
    differ = (found.sequences != expected.sequences).any(dim=0)
    if not differ.any():
        return 0.0
    if wide is None:
        return float("inf")
    first = int(differ.nonzero()[0])
    exact = wide.generate(expected.sequences[:, :first], max_new_tokens=1, **how).logits
    step = first - prompt.shape[1]
    return beyond([found.logits[step]], [expected.logits[step]], list(exact))


def tried(task, name, what, options, device, dtype):
    """What becomes of a case: a class, and words."""
    import logging

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    torch._dynamo.config.recompile_limit = 32
    torch.backends.cudnn.allow_tf32 = False
    try:
        try:
            if task == "module":
                import modules

                model, given, sizes = modules.built(name)
            else:
                model, given, sizes = built(task, name), inputs, TOKENS
            model, made = model.to(device=device, dtype=dtype), given
            given = lambda *of: moved(made(*of), device, dtype)  # noqa: E731
        except Exception as error:
            raise Unbuilt(f"{type(error).__name__}: {error}") from error
        ways = {
            # Images have extents of their own, of which the batch varies here.
            "infer": lambda options: infer(model, given, sizes, options, len(sizes) > 1 and "pixel_values" not in given(model, 2) or None),
            "sizes": lambda options: infer(model, given, sizes, options, True),
            "train": lambda options: train(model, given, options),
            "generate": lambda options: generate(model, options),
        }
        worst = ways[what](options)
    except Unbuilt as error:
        return "unbuilt", str(error)
    except Exception as error:
        words = str(error).replace("backend='symmc' raised:", "").split("Set TORCHDYNAMO")[0]
        words = re.sub(r"/\S*/graph\d*\.pt2: ", "", " ".join(words.split()))
        if "unsupported operators: " in words:
            return "unknown", words.split("unsupported operators: ")[-1]
        ours = any(kind in words[:80] for kind in ("InputError", "UnsupportedError", "ResourceError"))
        return "refused" if ours else "crashed", f"{type(error).__name__}: {words}"
    breaks, graphs = torch._dynamo.utils.counters["graph_break"], torch._dynamo.utils.counters["stats"]["unique_graphs"]
    words = f"{worst:.1e}, {graphs} graphs" + (f", {sum(breaks.values())} breaks" if breaks else "")
    if worst <= 1e-4:
        return "ok", words
    torch._dynamo.reset()
    model.zero_grad(set_to_none=True)
    try:
        is_ours = what == "generate" or ways[what](None) <= 1e-4
    except Exception as error:
        # Nothing tells then whose difference it is.
        is_ours, words = True, f"{words}; aot_eager: {type(error).__name__}: {' '.join(str(error).split())}"
    return ("wrong" if is_ours else "apart"), words


def forked(case, options, limit, device, dtype):
    """A case in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        signal.alarm(limit)
        status, words = tried(*case, options, device, dtype)
        os.write(writer, f"{status}\n{words}".encode()[:8000])
        sys.stdout.flush()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, ended = os.waitpid(child, 0)
    if said:
        return said.split("\n", 1)
    signal_number = os.WTERMSIG(ended) if os.WIFSIGNALED(ended) else 0
    return ("slow", f"no end within {limit} s") if signal_number == signal.SIGALRM else ("crashed", f"signal {signal_number}, exit {ended}")


def cases(patterns):
    """The cases that a pattern names, each family once for each task."""
    import modules

    found = [("module", name, what) for name in modules.MODULES for what in modules.ways(name)]
    for task, (mapping, ways) in TASKS.items():
        once = {}
        for kind, architecture in mapping.items():
            once.setdefault(str(architecture), kind)
        found += [(task, kind, what) for kind in once.values() for what in ways]
    return [case for case in found if not patterns or any(fnmatch.fnmatch(".".join(case), pattern) for pattern in patterns)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", help="which cases: TASK.NAME.WHAT")
    parser.add_argument("--fallback", default="error", help="what runs unknown operators: error, eager or inductor")
    parser.add_argument("--limit", type=int, default=120, help="seconds for a case")
    parser.add_argument("--device", default="cpu", help="where tensors are: cpu or cuda")
    parser.add_argument("--dtype", default="float32", help="of weights and what has fractions")
    parser.add_argument("--part", default="0/1", help="I/N: every N-th case from the I-th")
    args = parser.parse_args()
    counts, reasons = collections.Counter(), collections.defaultdict(set)
    part, parts = map(int, args.part.split("/"))
    for case in cases(args.patterns)[part::parts]:
        began = time.monotonic()
        status, words = forked(case, dict(fallback=args.fallback), args.limit, args.device, getattr(torch, args.dtype))
        counts[status] += 1
        print(f"{status}: {'.'.join(case)}: {words[:600]} ({time.monotonic() - began:.0f} s)", flush=True)
        if status == "unknown":
            for op in words.split(", "):
                reasons[op.strip()].add(case)
        elif status not in ("ok", "unbuilt", "apart"):
            reasons[f"{status}: {re.sub(r'[0-9]+', '#', words)[:110]}"].add(case)
    for reason, hit in sorted(reasons.items(), key=lambda item: -len(item[1])):
        print(f"{len(hit):4} {reason}: {', '.join('.'.join(case) for case in sorted(hit)[:4])}")
    print(", ".join(f"{status} {number}" for status, number in sorted(counts.items())))
    sys.exit(1 if counts["wrong"] + counts["crashed"] else 0)


if __name__ == "__main__":
    main()
