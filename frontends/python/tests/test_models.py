"""Models of transformers under the backend of ``torch.compile``, where PyTorch and transformers are."""

import importlib.util
import unittest

from with_torch import HAS_TORCH, close, compiled, on_ranks

HAS_MODELS = HAS_TORCH and importlib.util.find_spec("transformers") is not None

if HAS_TORCH:
    import torch
    import torch.distributed as dist


def tensor_parallel(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    columns = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    for name in ("llama", "qwen3", "mistral", "gemma"):
        reference, model = make(name).eval(), make(name).eval()
        styles = {}
        for path, _ in model.named_modules():
            last = path.split(".")[-1]
            if last in columns:
                styles[path] = ColwiseParallel()
            if last in ("o_proj", "down_proj"):
                styles[path] = RowwiseParallel()
        parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), styles)
        run = compiled(model, dynamic=True)
        with torch.no_grad():
            for tokens in (7, 2, 100):
                torch.manual_seed(tokens)
                ids = torch.randint(0, 100, (1, tokens))
                found = run(input_ids=ids, use_cache=False).logits
                close(found, reference(input_ids=ids, use_cache=False).logits)


def make(name):
    """A tiny model of transformers, with drawn weights."""
    import transformers as t

    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 100}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    both = {**sizes, **heads, **ends, "max_position_embeddings": 256}
    if name == "llama":
        return t.LlamaForCausalLM(t.LlamaConfig(**both))
    if name == "qwen3":
        return t.Qwen3ForCausalLM(t.Qwen3Config(**both, head_dim=16))
    if name == "mistral":
        return t.MistralForCausalLM(t.MistralConfig(**both))
    if name == "phi3":
        return t.Phi3ForCausalLM(t.Phi3Config(**both))
    if name == "gemma":
        return t.GemmaForCausalLM(t.GemmaConfig(**both, head_dim=16))
    if name == "mixtral":
        return t.MixtralForCausalLM(t.MixtralConfig(**both, num_local_experts=4))
    if name == "gpt2":
        return t.GPT2LMHeadModel(t.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=100, n_positions=256, **ends))
    return t.BertForMaskedLM(t.BertConfig(**sizes, num_attention_heads=4))


MODELS = ("llama", "qwen3", "mistral", "phi3", "gemma", "mixtral", "gpt2", "bert")


@unittest.skipUnless(HAS_MODELS, "transformers is not installed")
class Models(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)

    def test_models_at_several_sizes_without_a_cut(self):
        for name in MODELS:
            model = make(name).eval()
            run = compiled(model, dynamic=True)
            keywords = {} if name == "bert" else {"use_cache": False}
            with self.subTest(name), torch.no_grad():
                for tokens in (7, 2, 100):
                    ids = torch.randint(0, 100, (1, tokens))
                    close(run(input_ids=ids, **keywords).logits, model(input_ids=ids, **keywords).logits)

    def test_gradients_of_models(self):
        for name in ("llama", "mixtral", "gpt2", "bert"):
            one, other = make(name).eval(), make(name).eval()
            ids = torch.randint(0, 100, (2, 12))
            with self.subTest(name):
                for model, run in [(one, compiled(one)), (other, other)]:
                    run(input_ids=ids, labels=ids).loss.backward()
                for a, b in zip(one.parameters(), other.parameters()):
                    if b.grad is not None:
                        close(a.grad, b.grad)

    def test_generation_with_a_static_cache(self):
        for name, dynamic in (("llama", True), ("qwen3", None)):
            model = make(name).eval()
            model.generation_config.eos_token_id = None
            ids = torch.randint(3, 100, (2, 9))
            options = {"max_new_tokens": 12, "do_sample": False, "cache_implementation": "static", "disable_compile": True}
            with self.subTest(name):
                expected = model.generate(ids, **options)
                model.forward = compiled(model.forward, dynamic=dynamic)
                self.assertEqual(model.generate(ids, **options).tolist(), expected.tolist())

    def test_tensor_parallel_models(self):
        on_ranks(tensor_parallel)


if __name__ == "__main__":
    unittest.main()
