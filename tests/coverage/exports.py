#!/usr/bin/env python3
"""Exports models with open sizes, and plans and runs them without flags: `python3 tests/coverage/exports.py SYMMC [PATTERN...]`.

The models are of transformers (tiny, as in compiled.py), timm and diffusers, with random weights of a fixed seed. `torch.export` leaves
batch and tokens open (`Dim.AUTO`). `symmc plan FILE --ranks 1` gets no other flag; `symmc run` gets the recorded arguments and what
eager gave. A model counts as `unbuilt` where PyTorch does not build, export or save it, and its run as `apart` where it agrees with eager
in f64 and not in f32. PATTERNs say which models to try; `--keep FOLDER` keeps the archives. Exit code 1 if any is wrong. Written for PyTorch 2.15, transformers 5.24, timm 1.0 and diffusers 0.42.
"""

import argparse
import collections
import fnmatch
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import torch
from safetensors.torch import load_file, save_file
from torch.export import Dim
from torch.utils import _pytree as pytree

import compiled
from outcome import run

LIMIT = 600
"""Seconds for the export of a model."""

TRANSFORMERS = """
causal.llama causal.gpt2 causal.gemma2 causal.phi3 causal.falcon causal.glm4 causal.mixtral causal.olmoe causal.qwen3_moe
causal.deepseek_v3 causal.gpt_oss causal.mamba2 causal.qwen3_next causal.rwkv causal.jamba causal.qwen3 causal.bamba causal.falcon_h1
masked.bert masked.roberta masked.albert masked.deberta-v2 masked.modernbert classes.distilbert
seq2seq.t5 seq2seq.bart speech.whisper ctc.wav2vec2 ctc.hubert audio.audio-spectrogram-transformer
image.vit image.resnet image.convnext image.dinov2 image.beit image.mobilenet_v2 image.swin
segmentation.segformer segmentation.upernet depth.dpt detection.detr zero_shot.clip zero_shot.siglip
""".split()

TIMM = """
resnet18 efficientnet_b0 convnext_atto vit_tiny_patch16_224 swin_tiny_patch4_window7_224 densenet121 mobilenetv3_small_050
hrnet_w18_small mixer_s32_224 mobilevit_xxs levit_128s repvgg_a0 poolformer_s12 ghostnet_100 regnety_002
""".split()


def diffusion_models():
    """Models of diffusers by name: each makes a model and its arguments."""
    import diffusers

    image = lambda channels=4, size=16: torch.randn(2, channels, size, size)
    text, time = torch.randn(2, 5, 32), torch.tensor([3, 7])
    blocks = dict(block_out_channels=(8, 16), norm_num_groups=4)
    return {
        "unet2d": lambda: (
            diffusers.UNet2DModel(sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, attention_head_dim=8,
                down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"), **blocks),
            dict(sample=image(3), timestep=time)),
        "unet2dcond": lambda: (
            diffusers.UNet2DConditionModel(sample_size=16, layers_per_block=1, cross_attention_dim=32, attention_head_dim=4,
                down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), **blocks),
            dict(sample=image(), timestep=time, encoder_hidden_states=text)),
        "vae": lambda: (
            diffusers.AutoencoderKL(layers_per_block=1, sample_size=16, down_block_types=("DownEncoderBlock2D",) * 2,
                up_block_types=("UpDecoderBlock2D",) * 2, **blocks),
            dict(sample=image(3))),
        "vae_tiny": lambda: (
            diffusers.AutoencoderTiny(encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8), num_encoder_blocks=(1, 1),
                num_decoder_blocks=(1, 1)),
            dict(sample=image(3))),
        "dit": lambda: (
            diffusers.DiTTransformer2DModel(sample_size=8, num_layers=2, num_attention_heads=2, attention_head_dim=8, norm_num_groups=4),
            dict(hidden_states=image(4, 8), timestep=time, class_labels=torch.tensor([1, 2]))),
        "pixart": lambda: (
            diffusers.PixArtTransformer2DModel(sample_size=8, num_layers=2, num_attention_heads=2, attention_head_dim=8, caption_channels=32,
                cross_attention_dim=16, out_channels=8, use_additional_conditions=False, norm_num_groups=4),
            dict(hidden_states=image(4, 8), timestep=time, encoder_hidden_states=text)),
        "sd3": lambda: (
            diffusers.SD3Transformer2DModel(sample_size=16, num_layers=2, num_attention_heads=2, attention_head_dim=8, in_channels=4,
                joint_attention_dim=32, caption_projection_dim=16, pooled_projection_dim=16, out_channels=4, pos_embed_max_size=16),
            dict(hidden_states=image(4, 8), encoder_hidden_states=text, pooled_projections=torch.randn(2, 16), timestep=time)),
        "flux": lambda: (
            diffusers.FluxTransformer2DModel(patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
                num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=16, axes_dims_rope=(4, 4, 8)),
            dict(hidden_states=torch.randn(2, 16, 4), encoder_hidden_states=text, pooled_projections=torch.randn(2, 16),
                timestep=torch.tensor([0.3, 0.7]), img_ids=torch.randn(16, 3), txt_ids=torch.randn(5, 3))),
    }


def build(name):
    """A model and its arguments by name."""
    torch.manual_seed(compiled.SEED)
    family, kind = name.split(".", 1)
    if family == "timm":
        import timm

        model = timm.create_model(kind, pretrained=False).eval()
        return model, dict(x=torch.randn(2, *model.default_cfg["input_size"]))
    if family == "diff":
        model, given = diffusion_models()[kind]()
        return model.eval(), given
    model = compiled.built(family, kind)
    return model, compiled.inputs(model, 9)


def open_sizes(name, value):
    """The axes of an argument that are left open: batch, and tokens of text."""
    if not isinstance(value, torch.Tensor) or not value.dim() or name in ("img_ids", "txt_ids"):
        return None
    return {0: Dim.AUTO, 1: Dim.AUTO} if name.endswith("input_ids") else {0: Dim.AUTO}


def export(name, archive, tensors):
    """Writes the archive of a model, and a file with its arguments and what eager gives."""
    model, given = build(name)
    with torch.no_grad():
        expected = model(**given)
        dynamic = {key: open_sizes(key, value) for key, value in given.items()}
        exported = torch.export.export(model, (), given, dynamic_shapes=dynamic, strict=False)
    torch.export.save(exported, archive)
    leaves = lambda tree: [leaf.detach() for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    recorded = {f"rank0.in.{i}": leaf for i, leaf in enumerate(leaves(given))}
    recorded.update({f"rank0.out.{i}": leaf for i, leaf in enumerate(leaves(compiled._plain(expected)))})
    save_file({key: tensor.contiguous().clone() for key, tensor in recorded.items()}, tensors)


def record_wide(name, tensors):
    """Replaces the recorded results by those that eager gives in f64."""
    model, given = build(name)
    recorded = load_file(tensors)
    wide = {key: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value for key, value in given.items()}
    with torch.no_grad():
        results = pytree.tree_leaves(compiled._plain(model.double()(**wide)))
    for i, result in enumerate(leaf for leaf in results if isinstance(leaf, torch.Tensor)):
        recorded[f"rank0.out.{i}"] = result.to(recorded[f"rank0.out.{i}"].dtype).contiguous().clone()
    save_file(recorded, tensors)


def in_process(work, *arguments):
    """Works in a process of its own. Returns what stood in the way."""
    reader, writer = multiprocessing.Pipe(duplex=False)

    def answer():
        try:
            work(*arguments)
            writer.send("")
        except BaseException as error:
            writer.send(f"{type(error).__name__}: {error}")

    process = multiprocessing.get_context("fork").Process(target=answer)
    process.start()
    writer.close()
    try:
        return reader.recv() if reader.poll(LIMIT) else f"no end within {LIMIT} s"
    except EOFError:
        return "the process ended"
    finally:
        process.kill()
        process.join()


def plan(symmc, archive):
    """Whether a plan is made without flags, and the last words."""
    done = subprocess.run([symmc, "plan", str(archive), "--ranks", "1"], capture_output=True, text=True, timeout=300)
    words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or [""]
    return {0: "planned", 2: "refused"}.get(done.returncode, "wrong"), words[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("symmc", help="the symmc command")
    parser.add_argument("names", nargs="*", help="patterns of names such as causal.llama, timm.resnet18 and diff.vae")
    parser.add_argument("--keep", type=pathlib.Path, help="the folder that keeps the archives; those that it has are not exported again")
    args = parser.parse_args()
    names = TRANSFORMERS + [f"timm.{name}" for name in TIMM] + [f"diff.{name}" for name in diffusion_models()]
    plans, runs = collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            if args.names and not any(fnmatch.fnmatch(name, pattern) for pattern in args.names):
                continue
            archive, tensors = folder / f"{name}.pt2", folder / f"{name}.safetensors"
            if not tensors.exists() and (why := in_process(export, name, archive, tensors)):
                plans["unbuilt"] += 1
                print(f"unbuilt: {name}: {re.sub(chr(10), ' ', why)[:160]}", flush=True)
                continue
            planned, why = plan(args.symmc, archive)
            plans[planned] += 1
            if planned != "planned":
                print(f"plan {planned}: {name}: {why[:200]}", flush=True)
            ran, why = run(args.symmc, archive, tensors)
            if ran == "wrong" and not in_process(record_wide, name, tensors) and run(args.symmc, archive, tensors)[0] == "agreed":
                ran = "apart"
            runs[ran] += 1
            if ran != "agreed":
                print(f"run {ran}: {name}: {why[:200]}", flush=True)
            if not args.keep:
                archive.unlink()
                tensors.unlink()
    print(", ".join(f"{status} {plans[status]}" for status in ("planned", "refused", "wrong", "unbuilt")))
    print(", ".join(f"{status} {runs[status]}" for status in ("agreed", "refused", "wrong", "apart")))
    sys.exit(1 if plans["wrong"] or runs["wrong"] or not runs else 0)


if __name__ == "__main__":
    main()
