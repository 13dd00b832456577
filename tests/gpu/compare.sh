#!/usr/bin/env bash
# symmc beside PyTorch, NCCL and the kernels of inference engines on the same GPUs, in one run.
#
#   tests/gpu/compare.sh SYMMC OUT RANKS [collectives|layers|'mlp=16 decode=64 …']
#
# SYMMC is the binary, OUT a folder for the numbers, RANKS how many GPUs; then what is compared, if not everything: the
# collectives, the layers, or these programs of layers at these numbers of tokens. Needs PyTorch for the peers' side.
# Where Python finds the wheels flashinfer-python 0.6.1 and apache-tvm-ffi (on PYTHONPATH, say) and CUDA_HOME has nvcc,
# TensorRT-LLM's and vLLM's kernels are measured as well. Traces of symmc's programs are left in OUT.
set -euo pipefail
symmc=$(realpath "$1") out=$(realpath "$2") ranks=$3 part=${4:-all} here=$(realpath "$(dirname "$0")")
export LD_LIBRARY_PATH=/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}
sizes="4096 16384 65536 262144 1048576 4194304 16777216 67108864 268435456"
norms="1x4096,8x4096,32x4096,128x4096,1x8192,8x8192,32x8192,128x8192"
cases="mlp=1 mlp=16 mlp=64 mlp=512 mlp=4096 decode=1 decode=64 prefill=2048"
case $part in *=*) cases=$part part=layers ;; esac
nvidia-smi -L
cd "$(mktemp -d)"

collectives() {
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
}

# One program of layers at one number of tokens, in buckets of all that are measured of it.
layers() {
  local program=${1%=*} count=${1#*=} buckets
  [ -e "$program.pt2" ] || python3 "$here/export_layers.py" "$ranks" "$program" "$program.pt2" >>"$out/export.log" 2>&1
  buckets=$(printf '%s\n' $cases | sed -n "s/^$program=//p" | paste -sd,)
  "$symmc" bench program "$program.pt2" --ranks "$ranks" --machine "h200x$ranks" --bucket "tokens=$buckets" \
    --set "tokens=$count" --profile-trace "$out/$program-$count.json" 2>>"$out/symmc.err" |
    sed "s/^/$1 /" | tee -a "$out/symmc-layers.txt"
  torchrun --nproc-per-node "$ranks" "$here/peers.py" layers "$1" 2>>"$out/peers.err" |
    tee -a "$out/peers-layers.jsonl"
}

[ "$part" = layers ] || collectives
if [ "$part" != collectives ]; then
  for case in $cases; do layers "$case"; done
fi
python3 "$here/table.py" "$out" "$part" | tee "$out/table.md"
