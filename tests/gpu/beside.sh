#!/usr/bin/env bash
# An all-gather of 128 MiB beside a product of 8192 x 8192 matrices in bf16: what it adds to the product, in symmc's
# plans and in PyTorch, in one run.
#
#   tests/gpu/beside.sh SYMMC OUT RANKS
#
# SYMMC is the binary, OUT a folder for the numbers, RANKS how many GPUs. Needs PyTorch for the peers' side. Product
# and both are measured in turn, because the clocks of a GPU change with what it did before.
set -eu
symmc=$(realpath "$1") out=$(realpath "$2") ranks=$3 here=$(realpath "$(dirname "$0")")
export LD_LIBRARY_PATH=/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}
cd "$(mktemp -d)"

# program NAME: the product, with a shard of a parameter gathered beside it or without. One row of the gathered
# parameter is returned, so that the gather is part of the program.
program() {
  echo "program \"$1\" ranks $ranks"
  echo "group @all world"
  echo "param %a: bf16[8192, 8192]"
  echo "param %b: bf16[8192, 8192]"
  if [ "$1" = beside ]; then
    echo "param %s: bf16[$((8192 / ranks)), 8192]"
    echo "%g: bf16[8192, 8192] = all_gather %s group=@all"
  fi
  echo "%c: bf16[8192, 8192] = matmul %a, %b"
  if [ "$1" = beside ]; then
    echo "%t: bf16[1, 8192] = slice %g axis=0 start=8191 step=1"
    echo "%y: bf16[1, 8192] = neg %t"
  fi
  echo "return %c"
  if [ "$1" = beside ]; then echo "return %y"; fi
}
program product >product.symm
program beside >beside.symm

bench() {
  local how=$1 file=$2
  shift 2
  "$symmc" bench program "$file.symm" --machine "h200x$ranks" "$@" 2>>"$out/symmc.err" |
    sed "s/^/$how /" >>"$out/symmc-beside.txt"
}
for _ in 1 2 3; do
  bench product product
  bench copies beside --variants copies
  bench copy_engine beside --variants copy_engine
  bench chosen beside
done
for how in copy_engine plain; do
  torchrun --nproc-per-node "$ranks" "$here/peers.py" beside $how >>"$out/peers-beside.jsonl" 2>>"$out/peers.err"
done
python3 "$here/table.py" "$out" beside | tee "$out/beside.md"
