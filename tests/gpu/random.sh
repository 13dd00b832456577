#!/usr/bin/env bash
# Random programs on random meshes, on GPUs against the reference interpreter.
#
#   tests/gpu/random.sh SYMMC OUT RANKS COUNT [GPUS [FIRST]]
#
# SYMMC is the binary, beside which `examples/print_programs` (of `symmc-tests`) lies; OUT a folder for programs and logs.
# So many programs for so many ranks are drawn from the seeds from FIRST (0) on, planned for GPUs, and run; as many side
# by side as there are GPUs for, and with several ranks on each GPU where there are fewer. Counted are those that are
# right, wrong, refused before any rank starts, which names a node, and others, which fail where they run: only the first
# and the third may be.
set -u
symmc=$(realpath "$1") out=$(realpath "$2") ranks=$3 count=$4 gpus=${5:-$3} first=${6:-0}
work=$out/random$ranks
rm -rf "$work" && mkdir -p "$work"
"$(dirname "$symmc")/examples/print_programs" "$work" "$count" "$ranks" "$first" || exit 1

# one FILE GPUS: plans and runs a program; its verdict is the first line of its log.
one() {
  local file=$1 places=$2 log=${1%.symm}.log verdict on=(--machine "h200x$ranks")
  if ! "$symmc" plan "$file" "${on[@]}" >/dev/null 2>"$log.run"; then
    verdict=refused
    grep -q ': %' "$log.run" || verdict=other
  elif timeout 90 "$symmc" run "$file" "${on[@]}" --timeout 30 --backend cuda --gpus "$places" --seed 7 \
    --compare interpreter >"$log.run" 2>&1; then
    verdict=right
  elif grep -q 'FAILED:' "$log.run"; then
    verdict=wrong
  elif grep -q '%.*: GPUs cannot run it' "$log.run"; then
    verdict=refused
  else
    verdict=other
  fi
  { echo "$verdict $(basename "$file"): $(grep -m1 '^error' "$log.run")" && cat "$log.run"; } >"$log"
  rm "$log.run"
}

# Each lane of GPUs takes every so-manyth program.
files=("$work"/*.symm)
lanes=$((gpus / ranks > 0 ? gpus / ranks : 1)) each=$((gpus / ranks > 0 ? ranks : gpus))
for ((lane = 0; lane < lanes; lane++)); do
  (
    places=$(for ((r = 0; r < ranks; r++)); do echo $((lane * each + r * each / ranks)); done | paste -sd,)
    for ((i = lane; i < ${#files[@]}; i += lanes)); do one "${files[i]}" "$places"; done
  ) &
done
wait
of() { cat "$work"/*.log | grep -c "^$1 random"; }
cat "$work"/*.log | grep -E '^(wrong|other|refused) random'
echo "$count random programs on $ranks ranks: $(of right) right, $(of wrong) wrong, $(of refused) refused, $(of other) others"
[ "$(of wrong)" = 0 ] && [ "$(of other)" = 0 ]
