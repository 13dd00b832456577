#!/usr/bin/env bash
# symmc beside PyTorch and NCCL on the same GPUs, in one run.
#
#   tests/gpu/compare.sh SYMMC OUT RANKS
#
# SYMMC is the binary, OUT a folder for the numbers, RANKS how many GPUs. Needs PyTorch for the peers' side.
set -eu
symmc=$(realpath "$1") out=$(realpath "$2") ranks=$3 here=$(realpath "$(dirname "$0")")
export LD_LIBRARY_PATH=/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}
sizes="4096 16384 65536 262144 1048576 4194304 16777216 67108864 268435456"
tokens="1 16 64 512 4096"
nvidia-smi -L
cd "$(mktemp -d)"

"$symmc" bench collectives --ranks "$ranks" --bytes "${sizes// /,}" --format json >"$out/symmc-collectives.json"
# shellcheck disable=SC2086
torchrun --nproc-per-node "$ranks" "$here/peers.py" collectives $sizes >"$out/peers-collectives.jsonl" 2>"$out/peers.err"
python3 "$here/export_mlp.py" "$ranks" mlp.pt2 >"$out/export.log" 2>&1
for count in $tokens; do
  "$symmc" bench program mlp.pt2 --ranks "$ranks" --machine "h200x$ranks" --bucket "tokens=${tokens// /,}" \
    --set "tokens=$count" >>"$out/symmc-mlp.txt" 2>>"$out/symmc.err"
  # shellcheck disable=SC2086
  torchrun --nproc-per-node "$ranks" "$here/peers.py" mlp $count >>"$out/peers-mlp.jsonl" 2>>"$out/peers.err"
done
python3 "$here/table.py" "$out" | tee "$out/table.md"
