#!/usr/bin/env python3
"""Exports tiny models of Hugging Face families, with what PyTorch gives.

    python3 families.py OUT [NAME...]

Each name is `family.variant`, or a pattern of them (`llama.*`); without names those of this repository are written. A
family is one of FAMILIES: two layers with random weights of a fixed seed, the modelling code of transformers untouched. The
variants are those of VARIANTS. OUT gets `family_variant.pt2`, without the blobs of its weights, and
`family_variant.safetensors` with `rank{r}.w.PARAMETER`, `rank{r}.in.I` and `rank{r}.out.I`. Needs no GPU; with `tp2`, `ep2`
and `ep4` the ranks are processes that gloo joins. The variants of `ep` give `family_variant.rank{r}.pt2` for each rank: the
experts are divided among the ranks by the plan of transformers itself, whose programs have the number of the rank. Written for
PyTorch 2.15 and transformers 5.17; the variants of `ep` need transformers 5.24.
"""

import argparse
import copy
import fnmatch
import inspect
import os
import pathlib
import sys
import tempfile
import traceback
import warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.multiprocessing
import transformers
from safetensors.torch import save_file
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim

from saving import stripped

SEED, TOKENS, POSITIONS, WINDOW = 5, 11, 16, 4
# What most configurations take.
COMMON = dict(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=4096,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
WIDE = dict(COMMON, head_dim=16)
PLAIN = {k: v for k, v in COMMON.items() if k != "num_key_value_heads"}
MIXED = ["sliding_attention", "full_attention"]
# Tables of learned positions are kept short.
SHORT = 64
MLA = dict(
    q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, num_key_value_heads=2,
    n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=16, first_k_dense_replace=1,
    n_group=1, topk_group=1,
)
ENCODER_DECODER = dict(vocab_size=32, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
    decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    decoder_start_token_id=1)

# Where experts are divided among up to four ranks, each has two.
EXPERTS = 8

# Family: the configuration's class, the model's, and what the configuration is given.
FAMILIES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", COMMON),
    "llama_scaled": ("LlamaConfig", "LlamaForCausalLM", dict(COMMON, rope_parameters=dict(
        rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=512))),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", COMMON),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", WIDE),
    "mistral": ("MistralConfig", "MistralForCausalLM", dict(COMMON, sliding_window=WINDOW)),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", WIDE),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", dict(WIDE, sliding_window=WINDOW,
        layer_types=MIXED, query_pre_attn_scalar=16)),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", dict(WIDE, sliding_window=WINDOW,
        layer_types=MIXED, query_pre_attn_scalar=16)),
    "phi": ("PhiConfig", "PhiForCausalLM", dict(COMMON, partial_rotary_factor=0.5)),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", dict(COMMON, partial_rotary_factor=0.5, sliding_window=None)),
    "phi3_long": ("Phi3Config", "Phi3ForCausalLM", dict(COMMON, original_max_position_embeddings=64, rope_parameters=dict(
        rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[2.0, 3.0, 4.0, 5.0],
        original_max_position_embeddings=64))),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", dict(COMMON, num_local_experts=4, num_experts_per_tok=2,
        sliding_window=None)),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", dict(vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=SHORT,
        bos_token_id=1, eos_token_id=2)),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", dict(PLAIN, rotary_pct=0.5)),
    "gptj": ("GPTJConfig", "GPTJForCausalLM", dict(vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=SHORT,
        rotary_dim=4, bos_token_id=1, eos_token_id=2)),
    "bert": ("BertConfig", "BertModel", dict(PLAIN, max_position_embeddings=SHORT)),
    "roberta": ("RobertaConfig", "RobertaModel", dict(PLAIN, max_position_embeddings=SHORT)),
    "modernbert": ("ModernBertConfig", "ModernBertModel", dict(PLAIN, local_attention=2 * WINDOW, layer_types=MIXED,
        cls_token_id=1, sep_token_id=2)),
    "llama4": ("Llama4TextConfig", "Llama4ForCausalLM", dict(WIDE, intermediate_size_mlp=24, num_local_experts=2,
        num_experts_per_tok=1, attention_chunk_size=WINDOW, layer_types=["chunked_attention", "full_attention"],
        no_rope_layers=[1, 0], moe_layers=[1], attn_temperature_tuning=True)),
    "cohere": ("CohereConfig", "CohereForCausalLM", COMMON),
    "cohere2": ("Cohere2Config", "Cohere2ForCausalLM", dict(COMMON, sliding_window=WINDOW, layer_types=MIXED)),
    "glm": ("GlmConfig", "GlmForCausalLM", dict(WIDE, partial_rotary_factor=0.5)),
    "glm4": ("Glm4Config", "Glm4ForCausalLM", dict(WIDE, partial_rotary_factor=0.5)),
    "opt": ("OPTConfig", "OPTForCausalLM", dict(vocab_size=32, hidden_size=16, ffn_dim=24, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=SHORT, word_embed_proj_dim=16, pad_token_id=0,
        bos_token_id=1, eos_token_id=2)),
    "falcon": ("FalconConfig", "FalconForCausalLM", dict(PLAIN, multi_query=True)),
    "falcon_alibi": ("FalconConfig", "FalconForCausalLM", dict(PLAIN, alibi=True, multi_query=False,
        new_decoder_architecture=False)),
    "bloom": ("BloomConfig", "BloomForCausalLM", dict(vocab_size=32, hidden_size=16, n_layer=2, n_head=2, bos_token_id=1,
        eos_token_id=2, pad_token_id=0)),
    "mpt": ("MptConfig", "MptForCausalLM", dict(vocab_size=32, d_model=16, n_layers=2, n_heads=2, max_seq_len=SHORT)),
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration", dict(ENCODER_DECODER, num_mel_bins=8,
        max_source_positions=16, max_target_positions=SHORT, suppress_tokens=[], begin_suppress_tokens=[])),
    "bart": ("BartConfig", "BartForConditionalGeneration", dict(ENCODER_DECODER,
        max_position_embeddings=SHORT, forced_eos_token_id=2)),
    "t5": ("T5Config", "T5ForConditionalGeneration", dict(vocab_size=32, d_model=16, d_kv=8, d_ff=24, num_layers=2,
        num_heads=2, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)),
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM", dict(WIDE, num_local_experts=4, num_experts_per_tok=2,
        sliding_window=WINDOW, layer_types=MIXED, rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "gpt_oss_yarn": ("GptOssConfig", "GptOssForCausalLM", dict(WIDE, num_local_experts=4, num_experts_per_tok=2,
        sliding_window=WINDOW, layer_types=MIXED)),
    "stablelm": ("StableLmConfig", "StableLmForCausalLM", dict(COMMON, partial_rotary_factor=0.5)),
    "qwen2_moe": ("Qwen2MoeConfig", "Qwen2MoeForCausalLM", dict(COMMON, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16, shared_expert_intermediate_size=16)),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", dict(WIDE, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16)),
    "deepseek_v2": ("DeepseekV2Config", "DeepseekV2ForCausalLM", {**COMMON, **MLA, "topk_method": "greedy"}),
    "deepseek_v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM", {**COMMON, **MLA}),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", COMMON),
    "olmo3": ("Olmo3Config", "Olmo3ForCausalLM", dict(COMMON, sliding_window=WINDOW, layer_types=MIXED)),
    "granite": ("GraniteConfig", "GraniteForCausalLM", COMMON),
    "starcoder2": ("Starcoder2Config", "Starcoder2ForCausalLM", dict(COMMON, sliding_window=WINDOW)),
    "nemotron": ("NemotronConfig", "NemotronForCausalLM", dict(COMMON, head_dim=8)),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM", dict(COMMON, no_rope_layers=[1, 0])),
    "exaone4": ("Exaone4Config", "Exaone4ForCausalLM", dict(COMMON, sliding_window=WINDOW, layer_types=MIXED)),
    "ernie4_5": ("Ernie4_5Config", "Ernie4_5ForCausalLM", dict(COMMON, head_dim=8)),
    "helium": ("HeliumConfig", "HeliumForCausalLM", dict(COMMON, head_dim=8)),
    "gpt_neo": ("GPTNeoConfig", "GPTNeoForCausalLM", dict(vocab_size=32, hidden_size=16, num_layers=2, num_heads=2,
        attention_types=[[["global", "local"], 1]], window_size=WINDOW, max_position_embeddings=SHORT, bos_token_id=1,
        eos_token_id=2)),
    "gpt_bigcode": ("GPTBigCodeConfig", "GPTBigCodeForCausalLM", dict(vocab_size=32, n_embd=16, n_layer=2, n_head=2,
        n_positions=SHORT, bos_token_id=1, eos_token_id=2)),
    "persimmon": ("PersimmonConfig", "PersimmonForCausalLM", dict(PLAIN, partial_rotary_factor=0.5)),
    "biogpt": ("BioGptConfig", "BioGptForCausalLM", dict(PLAIN, max_position_embeddings=SHORT)),
    "xglm": ("XGLMConfig", "XGLMForCausalLM", dict(vocab_size=32, d_model=16, ffn_dim=24, num_layers=2, attention_heads=2,
        max_position_embeddings=SHORT, pad_token_id=0, bos_token_id=1, eos_token_id=2)),
    "apertus": ("ApertusConfig", "ApertusForCausalLM", COMMON),
    "arcee": ("ArceeConfig", "ArceeForCausalLM", COMMON),
    "seed_oss": ("SeedOssConfig", "SeedOssForCausalLM", WIDE),
    "hunyuan": ("HunYuanDenseV1Config", "HunYuanDenseV1ForCausalLM", WIDE),
    "ministral": ("MinistralConfig", "MinistralForCausalLM", dict(WIDE, sliding_window=WINDOW, layer_types=MIXED)),
    "olmo": ("OlmoConfig", "OlmoForCausalLM", COMMON),
    "lfm2": ("Lfm2Config", "Lfm2ForCausalLM", dict(COMMON, layer_types=["conv", "full_attention"])),
    "electra": ("ElectraConfig", "ElectraModel", dict(PLAIN, embedding_size=16, max_position_embeddings=SHORT)),
    "distilbert": ("DistilBertConfig", "DistilBertModel", dict(vocab_size=32, dim=16, hidden_dim=24, n_layers=2, n_heads=2,
        max_position_embeddings=SHORT, pad_token_id=0)),
    "albert": ("AlbertConfig", "AlbertModel", dict(PLAIN, embedding_size=16, max_position_embeddings=SHORT)),
    "roformer": ("RoFormerConfig", "RoFormerModel", dict(PLAIN, embedding_size=16, max_position_embeddings=SHORT)),
    "deberta_v2": ("DebertaV2Config", "DebertaV2Model", dict(PLAIN, relative_attention=True, pos_att_type=["p2c", "c2p"],
        max_position_embeddings=SHORT, max_relative_positions=8)),
    "clip_text": ("CLIPTextConfig", "CLIPTextModel", dict(PLAIN, max_position_embeddings=SHORT)),
    "marian": ("MarianConfig", "MarianMTModel", dict(ENCODER_DECODER, max_position_embeddings=SHORT)),
    "pegasus": ("PegasusConfig", "PegasusForConditionalGeneration", dict(ENCODER_DECODER, max_position_embeddings=SHORT)),
    "mbart": ("MBartConfig", "MBartForConditionalGeneration", dict(ENCODER_DECODER, max_position_embeddings=SHORT)),
    "m2m_100": ("M2M100Config", "M2M100ForConditionalGeneration", dict(ENCODER_DECODER, max_position_embeddings=SHORT)),
    "glm4_moe": ("Glm4MoeConfig", "Glm4MoeForCausalLM", dict(WIDE, n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16, first_k_dense_replace=1, n_shared_experts=1)),
    "olmoe": ("OlmoeConfig", "OlmoeForCausalLM", dict(COMMON, num_experts=4, num_experts_per_tok=2)),
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", dict(WIDE, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16, shared_expert_intermediate_size=16, linear_key_head_dim=8, linear_value_head_dim=8,
        linear_num_key_heads=2, linear_num_value_heads=2, layer_types=["linear_attention", "full_attention"])),
    "jamba": ("JambaConfig", "JambaForCausalLM", dict(COMMON, num_experts=4, num_experts_per_tok=2, use_mamba_kernels=False,
        attn_layer_period=2, attn_layer_offset=0, mamba_d_state=4)),
    "granitemoe": ("GraniteMoeConfig", "GraniteMoeForCausalLM", dict(COMMON, num_local_experts=4, num_experts_per_tok=2)),
    "phimoe": ("PhimoeConfig", "PhimoeForCausalLM", dict(COMMON, num_local_experts=4, num_experts_per_tok=2)),
    "minimax": ("MiniMaxConfig", "MiniMaxForCausalLM", dict(WIDE, num_local_experts=4, num_experts_per_tok=2, block_size=4,
        layer_types=["linear_attention", "full_attention"])),
    "minimax_m2": ("MiniMaxM2Config", "MiniMaxM2ForCausalLM", dict(WIDE, num_local_experts=4, num_experts_per_tok=2)),
    "ernie4_5_moe": ("Ernie4_5_MoeConfig", "Ernie4_5_MoeForCausalLM", dict(COMMON, moe_num_experts=4, moe_k=2,
        moe_intermediate_size=16, moe_num_shared_experts=1)),
    "hunyuan_moe": ("HunYuanMoEV1Config", "HunYuanMoEV1ForCausalLM", dict(WIDE, num_experts=4, moe_topk=2)),
    "dots1": ("Dots1Config", "Dots1ForCausalLM", dict(WIDE, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=16, first_k_dense_replace=1)),
    "flex_olmo": ("FlexOlmoConfig", "FlexOlmoForCausalLM", dict(COMMON, num_experts=4, num_experts_per_tok=2)),
    "hy_v3": ("HYV3Config", "HYV3ForCausalLM", dict(WIDE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)),
    "codegen": ("CodeGenConfig", "CodeGenForCausalLM", dict(vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=SHORT,
        rotary_dim=4, bos_token_id=1, eos_token_id=2)),
}


class Logits(torch.nn.Module):
    """The first output of a model that keeps no cache."""

    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, input_ids, attention_mask=None):
        # Encoders have no cache to leave out.
        extra = {"use_cache": False} if "use_cache" in inspect.signature(self.m.forward).parameters else {}
        return self.m(input_ids=input_ids, attention_mask=attention_mask, return_dict=True, **extra)[0]


class Positioned(torch.nn.Module):
    """A model that is told the position of each token."""

    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, input_ids, position_ids):
        return self.m(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits


class Crossed(torch.nn.Module):
    """An encoder and a decoder over two sequences."""

    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, source, decoder_input_ids, attention_mask=None):
        mask = {} if attention_mask is None else {"attention_mask": attention_mask}
        name = self.m.main_input_name
        return self.m(**{name: source}, decoder_input_ids=decoder_input_ids, use_cache=False, **mask).logits


class Static(torch.nn.Module):
    """A model with the static cache of transformers as it is, the windows of its sliding layers included."""

    def __init__(self, m, batch, positions, filled):
        super().__init__()
        self.m = m
        self.cache = transformers.StaticCache(config=m.config, max_cache_len=positions)
        ids = torch.randint(3, 30, (batch, filled))
        with torch.no_grad():
            m(input_ids=ids, past_key_values=self.cache, use_cache=True)
        for i, layer in enumerate(self.cache.layers):
            self.register_buffer(f"key_cache_{i}", layer.keys, persistent=False)
            self.register_buffer(f"value_cache_{i}", layer.values, persistent=False)
            self.register_buffer(f"cumulative_length_{i}", layer.cumulative_length, persistent=False)

    def forward(self, input_ids, position_ids):
        return self.m(input_ids=input_ids, position_ids=position_ids, past_key_values=self.cache, use_cache=True).logits


class Past(torch.nn.Module):
    """A model whose keys and values so far are arguments, and which returns the longer ones."""

    def __init__(self, m):
        super().__init__()
        self.m = m

    def forward(self, input_ids, past):
        cache = transformers.DynamicCache(config=self.m.config)
        for i, (k, v) in enumerate(zip(past[::2], past[1::2])):
            cache.update(k, v, i)
        logits = self.m(input_ids=input_ids, past_key_values=cache, use_cache=True).logits
        return (logits, *(t for layer in cache.layers for t in (layer.keys, layer.values)))


def distributed(model, ranks):
    """The model with its experts divided among the ranks, as transformers divides them for inference."""
    from transformers.distributed import DistributedConfig
    from transformers.distributed.expert_parallel import apply_expert_parallelism
    from transformers.distributed.utils import initialize_distributed_mesh

    _, mesh = initialize_distributed_mesh(DistributedConfig(tp_size=ranks, tp_plan={}, ep_size=ranks))
    plan = model._expand_parallel_plan(dict(model.ep_plan))
    return apply_expert_parallelism(model, mesh.get_mesh("ep"), mesh.get_mesh("tp"), plan, ep_implementation="all_reduce")


class Reduced(torch.nn.Module):
    """A projection of which every rank has a part of the columns."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return collectives.all_reduce(self.inner(x), "sum", dist.group.WORLD)


def built(family, attention="sdpa", ranks=1, rank=0, **changes):
    """The model of one rank: heads and intermediate size are divided, what is not divided is the same on all."""
    config_class, model_class, given = FAMILIES[family]
    given = {**given, **changes}
    if ranks > 1:
        given |= dict(num_attention_heads=4, num_key_value_heads=2)
        given["head_dim"] = given.get("head_dim", given["hidden_size"] // given["num_attention_heads"])
        for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size"):
            if key in given:
                given[key] //= ranks
    config = getattr(transformers, config_class)(**given)
    if not getattr(getattr(transformers, model_class), "_supports_sdpa", False):
        attention = "eager"
    config._attn_implementation = attention
    torch.manual_seed(SEED)
    model = getattr(transformers, model_class)(config).eval().requires_grad_(False)
    model.set_attn_implementation(attention)
    # Drawn so that every part of a model counts in its result.
    for i, (name, w) in enumerate(model.named_parameters()):
        own = rank if "_proj" in name else 0
        generator = torch.Generator().manual_seed(SEED + 1000 * own + i)
        numbers = torch.randn(w.shape, generator=generator)
        w.data.copy_(numbers * 0.3 if w.dim() > 1 else numbers * 0.1 + ("norm" in name))
    if ranks > 1:
        for layer in model.model.layers:
            layer.self_attn.o_proj = Reduced(layer.self_attn.o_proj)
            if hasattr(layer.mlp, "down_proj"):
                layer.mlp.down_proj = Reduced(layer.mlp.down_proj)
            else:
                # Each rank has a part of every expert.
                layer.mlp = Reduced(layer.mlp)
    return model


def expert_parallel(family, ranks, experts="grouped_mm", dtype=torch.float32):
    """A sequence without a cache, the experts divided among the ranks."""
    count = next(k for k in ("num_local_experts", "n_routed_experts", "moe_num_experts", "num_experts") if k in FAMILIES[family][2])
    model = built(family, **{count: EXPERTS})
    model.set_experts_implementation(experts)
    model = distributed(model.to(dtype), ranks)
    tokens = Dim("tokens", min=2, max=limit(model) - 2)
    linear = "linear_attention" in (getattr(model.config, "layer_types", None) or []) or family == "jamba"
    # Recurrent layers are exported for the number of tokens at hand.
    return Logits(model), (ids(2, TOKENS),), None if linear else ({0: Dim("batch", min=1, max=64), 1: tokens},)


def crossed(family):
    return any(part in FAMILIES[family][1] for part in ("ForConditionalGeneration", "MarianMT"))


def limit(model):
    given = model.config.to_dict()
    learned = [given.get(k) for k in ("n_positions", "max_position_embeddings", "max_target_positions", "max_seq_len")]
    return min([n for n in learned if n] + [4096])


def ids(batch, tokens):
    return torch.randint(3, 30, (batch, tokens))


def prefill(family, padded=False, batch=1, **how):
    """A sequence without a cache; `padded` adds the mask that tokenisers give, and a dynamic batch."""
    model = built(family, **how)
    tokens = Dim("tokens", min=2, max=limit(model) - 2)
    rows = Dim("batch", min=1, max=64) if padded else None
    shape = {0: rows, 1: tokens} if padded else {1: tokens}
    mask = torch.ones(2, TOKENS, dtype=torch.int64)
    mask[1, :3] = 0  # On the left, as for generation.
    if "Bert" in FAMILIES[family][1] or crossed(family):
        mask = mask.flip(1)
    if crossed(family):
        if FAMILIES[family][0] == "WhisperConfig":
            source, of_source = torch.randn(batch, 8, 32), {}
        else:
            source, of_source = ids(2 if padded else batch, 9), {1: Dim("source", min=2, max=SHORT - 2)}
            mask = mask[:, :9].contiguous()
        target = ids(2 if padded else batch, TOKENS - 2)
        given, dynamic = (source, target), (of_source, {1: tokens})
        return Crossed(model), given + ((mask,) if padded else ()), dynamic + ((of_source,) if padded else ())
    if padded:
        return Logits(model), (ids(2, TOKENS), mask), (shape, shape)
    return Logits(model), (ids(batch, TOKENS),), (shape,)


def batched(family):
    """Several sequences of one length, how many of them dynamic."""
    module, (given,), _ = prefill(family, batch=3)
    return module, (given,), ({0: Dim("batch", min=1, max=64), 1: Dim("tokens", min=2, max=limit(module.m) - 2)},)


def positions(family):
    """The positions are an argument, as of sequences that are packed into one."""
    model = built(family)
    shape = {1: Dim("tokens", min=2, max=limit(model) - 2)}
    packed = torch.cat([torch.arange(6), torch.arange(TOKENS - 6)])[None]
    return Positioned(model), (ids(1, TOKENS), packed), (shape, shape)


def eager(family):
    return prefill(family, attention="eager")


def eager_padded(family):
    return prefill(family, padded=True, attention="eager")


def padded(family):
    return prefill(family, padded=True)


def executorch(family, tokens, filled):
    """transformers' own module for export with a static cache, of which some positions are filled."""
    from transformers.integrations import executorch as of_transformers

    model = built(family)
    model.generation_config = transformers.GenerationConfig(use_cache=True, cache_implementation="static",
        cache_config={"batch_size": 1, "max_cache_len": POSITIONS})
    sliding = getattr(model.config, "layer_types", None) and getattr(model.config, "sliding_window", None) is not None
    kind = "Hybrid" if sliding else "Static"
    module = getattr(of_transformers, f"TorchExportableModuleWith{kind}Cache")(model, 1, POSITIONS, torch.device("cpu"))
    if filled:
        with torch.no_grad():
            module(input_ids=ids(1, filled), cache_position=torch.arange(filled))
    return module, tokens, filled


def static_prefill(family):
    module, _, _ = executorch(family, TOKENS, 0)
    tokens = Dim("tokens", min=2, max=POSITIONS - 1)
    given = dict(input_ids=ids(1, TOKENS), cache_position=torch.arange(TOKENS))
    return module, given, dict(input_ids={1: tokens}, cache_position={0: tokens})


def static_decode(family):
    module, _, _ = executorch(family, 1, 7)
    return module, dict(input_ids=ids(1, 1), cache_position=torch.tensor([7])), None


def rolled_decode(family):
    """One token more in a static cache whose sliding layers are full."""
    module = Static(built(family), 1, POSITIONS, 7)
    return module, (ids(1, 1), torch.tensor([[7]])), None


def past(family):
    """Several tokens after those of a cache that grows."""
    model = built(family)
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=ids(1, 6), past_key_values=cache, use_cache=True)
    given = [t for layer in cache.layers for t in (layer.keys, layer.values)]
    # Sliding layers keep one position less than their window, which is no symbol.
    of_past = {2: Dim("past", min=2, max=2048)}
    shapes = [of_past if t.shape[2] == 6 else {} for t in given]
    return Past(model), (ids(1, 3), given), ({1: Dim("tokens", min=2, max=2048)}, shapes)


def cuda(family):
    """Traced on CUDA, which needs no GPU, as nothing is computed: masks and kernels are chosen as they are there."""
    return batched(family)


def tp2(family, rank=0):
    return prefill(family, batch=2, ranks=2, rank=rank)


def ep2(family, rank=0):
    return expert_parallel(family, 2)


def ep4(family, rank=0):
    return expert_parallel(family, 4)


def ep2_bf16(family, rank=0):
    return expert_parallel(family, 2, dtype=torch.bfloat16)


def ep4_batched(family, rank=0):
    return expert_parallel(family, 4, experts="batched_mm")


VARIANTS = {
    "prefill": prefill, "batched": batched, "positions": positions, "eager": eager, "padded": padded,
    "eager_padded": eager_padded, "static_prefill": static_prefill,
    "static_decode": static_decode, "rolled_decode": rolled_decode, "past": past, "cuda": cuda, "tp2": tp2,
    "ep2": ep2, "ep4": ep4, "ep2_bf16": ep2_bf16, "ep4_batched": ep4_batched,
}
# The ranks of variants that have several.
RANKS = {"tp2": 2, "ep2": 2, "ep4": 4, "ep2_bf16": 2, "ep4_batched": 4}
WITH_CACHE = ["llama", "qwen3", "mistral", "gemma2", "gemma3", "gpt_oss", "phi3", "gpt_neox", "cohere", "llama4"]
WITH_EXPERTS = ["qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "glm4_moe", "deepseek_v2", "dots1", "ernie4_5_moe",
    "flex_olmo", "granitemoe", "hunyuan_moe", "hy_v3", "jamba", "minimax", "minimax_m2", "olmoe", "phimoe", "qwen2_moe",
    "qwen3_next"]
# What exists of the families and variants.
NAMES = (
    [f"{f}.{v}" for v in ("prefill", "padded") for f in FAMILIES]
    + [f"{f}.batched" for f in ("llama", "mistral", "gemma3", "llama4", "gpt_oss", "bert", "modernbert", "falcon_alibi")]
    + [f"{f}.positions" for f in ("llama", "mistral", "gemma3")]
    + [f"{f}.eager" for f in ("llama", "gemma2", "mistral", "gpt2", "bert", "t5", "gpt_neox")]
    + [f"{f}.eager_padded" for f in ("llama", "gemma2", "mistral", "gpt2", "bert", "gpt_neox", "opt", "whisper")]
    + [f"{f}.{v}" for v in ("static_prefill", "static_decode", "past") for f in WITH_CACHE]
    + [f"{f}.rolled_decode" for f in ("mistral", "gemma2", "gemma3", "gpt_oss", "llama4")]
    + [f"{f}.cuda" for f in ("llama", "mistral", "gemma3", "gpt2", "bert", "gpt_neox", "phi3", "cohere2")]
    + [f"{f}.tp2" for f in ("llama", "qwen3", "mistral", "gemma3", "glm4", "olmo2", "mixtral", "qwen3_moe")]
    + [f"{f}.{v}" for v in ("ep2", "ep4", "ep2_bf16", "ep4_batched") for f in WITH_EXPERTS]
)
# What lies in the folder `families`.
RECORDED = """
    bert.padded bloom.padded cohere2.prefill falcon_alibi.prefill gemma2.prefill gemma3.cuda gemma3.rolled_decode
    gemma3.static_prefill glm4.prefill gpt2.eager gpt_neox.prefill gpt_oss.ep2 gpt_oss.prefill llama.batched llama.padded llama.past
    llama.positions llama.static_decode llama4.padded llama4.prefill mistral.eager_padded mistral.prefill
    mixtral.ep4_batched mixtral.prefill modernbert.prefill opt.padded phi3.prefill qwen3.tp2 qwen3_moe.ep2 qwen3_moe.tp2 stablelm.prefill t5.prefill
    whisper.prefill xglm.padded
""".split()


def leaves(value):
    return [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def recorded(module, given, rank):
    """Weights and buffers before the call, inputs and outputs of one rank."""
    parts = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    args = list(given.values()) if isinstance(given, dict) else given
    out = {f"rank{rank}.w.{n}": t.to_local() if hasattr(t, "to_local") else t for n, t in parts.items()}
    out |= {f"rank{rank}.in.{i}": t for i, t in enumerate(leaves(args))}
    out = {n: t.detach().clone().contiguous() for n, t in out.items()}
    # A copy runs, as caches keep counts of their own, which tracing changes as well. Models of several ranks have none.
    copied = module if dist.is_initialized() else copy.deepcopy(module)
    result = copied(**given) if isinstance(given, dict) else copied(*given)
    return out | {f"rank{rank}.out.{i}": t.clone().contiguous() for i, t in enumerate(leaves(result))}


def needed(tensors, program):
    """Without the weights that the program has no argument for, and constants, which it holds."""
    signature = program.graph_signature
    stored = set(program.state_dict) | set(signature.buffers_to_mutate.values())
    kept = {s.target for s in signature.input_specs if s.target in stored}
    return {n: t for n, t in tensors.items() if ".w." not in n or n.split(".w.", 1)[1] in kept}


def exported_on_cuda(module, given, dynamic):
    """The program that CUDA gives, with the constants of the module as it is."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
        model = module.m
        there = type(module)(type(model)(model.config).eval())
        there.m.set_attn_implementation(model.config._attn_implementation)
        given = tuple(torch.zeros(t.shape, dtype=t.dtype) for t in given)
        program = torch.export.export(there, given, dynamic_shapes=dynamic, strict=False)
    buffers = dict(module.named_buffers())
    for name in program.constants:
        program.constants[name] = buffers[name]
    return program


def exported(module, given, dynamic, strict):
    args, kwargs = ((), given) if isinstance(given, dict) else (given, None)
    return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic, strict=strict)


def of_rank(rank, ranks, family, variant, folder):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    torch.manual_seed(SEED)
    with torch.no_grad():
        module, given, dynamic = VARIANTS[variant](family, **({"rank": rank} if ranks > 1 else {}))
        tensors = recorded(module, given, rank)
        if variant == "cuda":
            program = exported_on_cuda(module, given, dynamic)
        else:
            # Strict, as transformers exports caches: otherwise tracing takes their tensors for constants.
            program = exported(module, given, dynamic, strict="static" in variant or "rolled" in variant)
    save_file(needed(tensors, program), f"{folder}/{rank}.safetensors")
    if rank == 0 or variant.startswith("ep"):
        stripped(program, f"{folder}/{rank}.pt2")
    if ranks > 1:
        dist.destroy_process_group()


def write(name, out):
    from safetensors.torch import load_file

    family, variant = name.split(".")
    ranks = RANKS.get(variant, 1)
    with tempfile.TemporaryDirectory() as folder:
        if ranks == 1:
            of_rank(0, 1, family, variant, folder)
        else:
            torch.multiprocessing.spawn(of_rank, (ranks, family, variant, folder), nprocs=ranks)
        tensors = {}
        for rank in range(ranks):
            tensors |= load_file(f"{folder}/{rank}.safetensors")
        stem = name.replace(".", "_")
        save_file(tensors, out / f"{stem}.safetensors")
        programs = range(ranks) if variant.startswith("ep") else [0]
        for rank in programs:
            end = f"rank{rank}.pt2" if len(programs) > 1 else "pt2"
            (out / f"{stem}.{end}").write_bytes(pathlib.Path(folder, f"{rank}.pt2").read_bytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="the folder for the files")
    parser.add_argument("names", nargs="*", help="what to export, patterns too")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    chosen = [n for n in NAMES if any(fnmatch.fnmatch(n, p) for p in args.names or RECORDED)]
    failed = 0
    for name in chosen:
        try:
            write(name, args.out)
            print(f"{name}: written", flush=True)
        except Exception as error:  # What PyTorch or transformers cannot export is said and left out.
            failed += 1
            words = (str(error).strip().splitlines() or [""])[0]
            print(f"{name}: {type(error).__name__}: {words[:200]}", flush=True)
            if os.environ.get("TRACE"):
                traceback.print_exc()
    sys.exit(1 if failed or not chosen else 0)


if __name__ == "__main__":
    main()
