#!/usr/bin/env bash
# symmc beside PyTorch, NCCL and the kernels of inference engines on the same GPUs, in one run.
#
#   tests/gpu/compare.sh SYMMC OUT RANKS [collectives]
#
# SYMMC is the binary, OUT a folder for the numbers, RANKS how many GPUs; with `collectives`, programs are left out.
# Needs PyTorch for the peers' side. Where Python finds the wheels flashinfer-python 0.6.1 and apache-tvm-ffi (on
# PYTHONPATH, say) and CUDA_HOME has nvcc, TensorRT-LLM's and vLLM's kernels are measured as well.
set -eu
symmc=$(realpath "$1") out=$(realpath "$2") ranks=$3 part=${4:-all} here=$(realpath "$(dirname "$0")")
export LD_LIBRARY_PATH=/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}
sizes="4096 16384 65536 262144 1048576 4194304 16777216 67108864 268435456"
norms="1x4096,8x4096,32x4096,128x4096,1x8192,8x8192,32x8192,128x8192"
tokens="1 16 64 512 4096"
nvidia-smi -L
cd "$(mktemp -d)"

"$symmc" bench collectives --ranks "$ranks" --bytes "${sizes// /,}" --norms "$norms" --format json \
  >"$out/symmc-collectives.json"
# shellcheck disable=SC2086
torchrun --nproc-per-node "$ranks" "$here/peers.py" collectives $sizes >"$out/peers-collectives.jsonl" 2>"$out/peers.err"
if python3 -c 'import flashinfer.comm' 2>"$out/serving.err"; then
  # shellcheck disable=SC2086
  torchrun --nproc-per-node "$ranks" "$here/serving.py" $sizes >"$out/serving.jsonl" 2>"$out/serving.err"
else
  echo "no FlashInfer here: $(tail -1 "$out/serving.err"); its columns are left out"
fi
if [ "$part" = collectives ]; then
  python3 "$here/table.py" "$out" collectives | tee "$out/table.md"
  exit
fi
python3 "$here/export_mlp.py" "$ranks" mlp.pt2 >"$out/export.log" 2>&1
for count in $tokens; do
  "$symmc" bench program mlp.pt2 --ranks "$ranks" --machine "h200x$ranks" --bucket "tokens=${tokens// /,}" \
    --set "tokens=$count" >>"$out/symmc-mlp.txt" 2>>"$out/symmc.err"
  # shellcheck disable=SC2086
  torchrun --nproc-per-node "$ranks" "$here/peers.py" mlp $count >>"$out/peers-mlp.jsonl" 2>>"$out/peers.err"
done
python3 "$here/table.py" "$out" | tee "$out/table.md"
