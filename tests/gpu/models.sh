#!/usr/bin/env bash
# Hugging Face models under symmc beside torch.compile, on the same GPUs and in one run, as a table of ratios.
#
#   tests/gpu/models.sh SYMMC OUT RANKS [MODELS [TOKENS [PEERS [CHECKS [SIZES]]]]]
#
# SYMMC is the binary, OUT a folder for everything but the table, RANKS how many GPUs (1: a whole model on one). MODELS are
# 'llama qwen3', TOKENS '2,64,512,2048,4096', PEERS 'whole' (or of 'whole,causal,autotune'), CHECKS the tokens at which
# results are compared with f32 ('64,2048', or '' for none), SIZES those of the models; models.py says what these are.
# Needs PyTorch and transformers. The exit code is 1 where symmc's results are missing, or further from f32 than the
# model's own.
set -euo pipefail
symmc=$(realpath "$1") ranks=$3 models=${4:-llama qwen3} tokens=${5:-2,64,512,2048,4096} peers=${6:-whole}
checks=${7-64,2048} sizes=${8:-8,4096,14336,32,8,32000} here=$(realpath "$(dirname "$0")")
mkdir -p "$2"
out=$(realpath "$2")
export LD_LIBRARY_PATH=/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-} PYTHONDONTWRITEBYTECODE=1 TRANSFORMERS_VERBOSITY=error
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
machine=h200x$((ranks < 2 ? 2 : ranks))
nvidia-smi -L >"$out/machine.txt" 2>&1 || true
"$symmc" --version >>"$out/machine.txt"
python3 -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__)' \
  >>"$out/machine.txt"
rm -f "$out/models.jsonl" "$out/models-symmc.txt"

# What is the same for runs and measurements of one program.
given() { printf '%s\n' "$out/$1-$ranks.pt2" --ranks "$ranks" --machine "$machine" --bucket "$2=$tokens"; }

for model in $models; do
  torchrun --nproc-per-node "$ranks" "$here/models.py" measure "$model" "$out" "$scratch" "$tokens" "$peers" "$checks" \
    "$sizes" >>"$out/peers.log" 2>&1 || { tail -20 "$out/peers.log"; exit 1; }
  symbol=$(cat "$out/$model-$ranks.symbol")
  mapfile -t program < <(given "$model" "$symbol")
  for count in ${tokens//,/ }; do
    "$symmc" bench program "${program[@]}" --set "$symbol=$count" --profile-trace "$out/$model-$ranks-$count.json" \
      2>>"$out/symmc.err" | sed "s/^/$model $ranks $count /" >>"$out/models-symmc.txt" || tail -1 "$out/symmc.err"
  done
  for count in ${checks//,/ }; do
    python3 "$here/models.py" aim "$scratch" "$count" "$ranks"
    if "$symmc" run "${program[@]}" --backend cuda --tensors "$scratch/tensors.safetensors" --compare none --timeout 120 \
      --output "$scratch/found.safetensors" >>"$out/symmc.log" 2>&1; then
      python3 "$here/models.py" agreed "$out" "$scratch" "$model" "$ranks" "$count"
    else
      tail -1 "$out/symmc.log"
    fi
  done
  rm -f "$scratch"/*
done
python3 "$here/models.py" table "$out" | tee "$out/models.md"
