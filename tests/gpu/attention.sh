#!/usr/bin/env bash
# Attention alone on one GPU: symmc as it chooses, symmc's own kernels, and PyTorch's cuDNN and flash in the same run.
#
#   tests/gpu/attention.sh SYMMC OUT [CASE...]
#
# SYMMC is the binary, OUT a folder for the numbers; cases are attention.py's. Needs PyTorch for the peers' side, whose cuDNN
# symmc takes, too.
set -euo pipefail
symmc=$(realpath "$1") out=$(realpath "$2") here=$(realpath "$(dirname "$0")")
shift 2
export LD_LIBRARY_PATH=/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}
SYMMC_CUDNN_PATH=${SYMMC_CUDNN_PATH:-$(python3 -c 'import nvidia.cudnn; print(list(nvidia.cudnn.__path__)[0] + "/lib")')}
export SYMMC_CUDNN_PATH
cases=("$@")
if [ ${#cases[@]} = 0 ]; then
  for heads in 16/4:128 32/8:64; do
    for tokens in 512 2048 4096 16384; do
      for sees in causal full 1024; do cases+=("prefill:$heads:$tokens:$sees"); done
      for sees in causal full; do cases+=("gradient:$heads:$tokens:$sees"); done
    done
  done
  for positions in 1024 8192 65536; do
    for sequences in 1 16 64; do cases+=("decode:16/4:128:$sequences:$positions"); done
  done
fi
nvidia-smi -L
work=$(mktemp -d)

# The microseconds of a program.
measure() {
  "$symmc" bench program "$work/$1.symm" --machine h200x2 "${@:2}" 2>>"$out/attention.err" | sed -n 's/.*: \([0-9.]*\) µs.*/\1/p'
}
for case in "${cases[@]}"; do
  name=${case//[:\/]/-}
  python3 "$here/attention.py" program "$case" >"$work/$name.symm"
  printf '%s  symmc %s own %s\n' "$case" "$(measure "$name")" "$(measure "$name" --products heuristic)"
done | tee "$out/attention-symmc.txt"
python3 "$here/attention.py" peers "${cases[@]}" | tee "$out/attention-peers.txt"
