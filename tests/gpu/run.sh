#!/usr/bin/env bash
# Everything that must hold on a machine with GPUs: the real programs against the values that PyTorch recorded and
# against the interpreter, chaos, many replays, and ranks that die or stop.
#
#   tests/gpu/run.sh SYMMC OUT [GPUS]
#
# SYMMC is the binary, OUT a folder for the logs, GPUS how many to use (2 by default). Programs for more ranks than
# there are GPUs run with several ranks on each, as long as their plans leave NCCL out, which refuses that. The variable
# ONLY, an extended regular expression, runs the checks whose names match and skips the others. Beside the
# binary may lie `examples/check_sessions`, `examples/check_embedding`, `examples/check_replays` and `examples/print_programs` (of
# `symmc-tests`), `examples/generate` (of `symmc`), `examples/adopt` and `examples/check_compute` (of `symmc-cuda`), and
# `examples/gpus`, which is `examples/c/gpus.c` with `libsymmc.a`.
set -u
mkdir -p "$2" || exit 2
symmc=$(realpath "$1") out=$(realpath "$2") gpus=${3:-2}
programs=$(realpath "$(dirname "$0")/../programs")
export LD_LIBRARY_PATH=/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}
only=${ONLY:-}
count=0 failed=0 skipped=0

say() { printf '%s\n' "$*" | tee -a "$out/table"; }

# selected NAME: whether ONLY selects this check; counts it as skipped if not.
selected() {
  if [[ $1 =~ $only ]]; then return 0; fi
  skipped=$((skipped + 1))
  return 1
}

# check NAME EXPECTED COMMAND...: runs within a minute and a half, or `limit` seconds, and compares the exit code.
check() {
  local name=$1 expected=$2 start=$SECONDS code
  shift 2
  selected "$name" || return 0
  count=$((count + 1))
  timeout "${limit:-90}" "$@" >"$out/$count.log" 2>&1
  code=$?
  local verdict=ok
  if [ "$code" != "$expected" ]; then
    verdict="FAILED: exit code $code, expected $expected: $(tail -1 "$out/$count.log")"
    failed=$((failed + 1))
  fi
  say "$(printf '%-44s %3d s  %s' "$name" $((SECONDS - start)) "$verdict")"
}

# The GPU of each of so many ranks.
places() {
  local list=() rank
  for ((rank = 0; rank < $1; rank++)); do list+=($((rank * gpus / $1))); done
  (IFS=,; echo "${list[*]}")
}

run() { "$symmc" run "$@" --backend cuda; }
say "$(nvidia-smi -L)"
say "$("$symmc" --version)"

for case in "hf_llama_tp2 2" "megatron_tp4_f32 4" "megatron_tp4_bf16 4" "moe_ep4 4" "gpt_tp2 2"; do
  read -r name ranks <<<"$case"
  on=(--tensors "$programs/$name.safetensors" --machine "h200x$ranks" --gpus "$(places "$ranks")")
  files=("$programs/$name.pt2")
  if [ ! -e "${files[0]}" ]; then files=("$programs/${name}"_rank*.onnx); fi
  check "$name" 0 "$symmc" run "${files[@]}" --backend cuda "${on[@]}"
  for seed in 1 2 3 4 5; do
    check "$name, chaos $seed" 0 "$symmc" run "${files[@]}" --backend cuda "${on[@]}" --chaos "$seed" --repeat 5
  done
done
# Two ranks run on one GPU where there is no other; what needs NCCL fails there.
two=(--gpus "$(places 2)")
llama=("$programs/hf_llama_tp2.pt2" --tensors "$programs/hf_llama_tp2.safetensors" --machine h200x2 "${two[@]}")
check "hf_llama_tp2, 10000 replays" 0 "$symmc" run "${llama[@]}" --backend cuda --repeat 10000
for tokens in 2 7 1000; do
  check "megatron_tp4_f32, $tokens tokens" 0 "$symmc" run "$programs/megatron_tp4_f32.pt2" --backend cuda \
    --machine h200x4 --gpus "$(places 4)" --set tokens=$tokens --compare interpreter
done
for name in fsdp4_fw_graph fsdp4_bw_graph; do
  check "$name" 0 "$symmc" run "$programs/$name.pt2" --backend cuda --machine h200x4 --gpus "$(places 4)" \
    --seed 1 --compare interpreter
done
# A cache that is changed where it lies, run after run.
cat >"$out/cache.symm" <<'END'
program "cache" ranks 2
group @all world
arg %x: bf16[8, 512]
arg %at: i64[8]
param %keys: bf16[64, 512]
param %w: bf16[512, 512]
%y: bf16[8, 512] = matmul %x, %w
%r: bf16[8, 512] = all_reduce %y op=avg group=@all
%next: bf16[64, 512] = index_put %keys, %r, %at axis=0 accumulate=true
%z: bf16[64, 512] = relu %next
return %z
mutate %keys = %next
END
for repeat in 1 20; do
  check "a cache in place, $repeat runs" 0 "$symmc" run "$out/cache.symm" --backend cuda --machine h200x2 "${two[@]}" --seed 1 \
    --repeat $repeat --compare interpreter
done
# More runs than announcements are kept, and then one more with a trace.
check "a trace after 100 measured runs" 0 "$symmc" bench program "$out/cache.symm" --backend cuda --machine h200x2 "${two[@]}" --runs 5 \
  --profile-trace "$out/trace.json"
# Skinny GEMMs of so many rows that clusters of two blocks split K, with epilogues.
cat >"$out/rows.symm" <<'END'
program "rows" ranks 2
group @all world
arg %x: bf16[40, 512]
param %gate: bf16[2400, 512]
param %up: bf16[2400, 512]
param %down: bf16[2700, 2400]
%gate_t: bf16[512, 2400] = permute %gate perm=[1, 0]
%up_t: bf16[512, 2400] = permute %up perm=[1, 0]
%down_t: bf16[2400, 2700] = permute %down perm=[1, 0]
%g: bf16[40, 2400] = matmul %x, %gate_t
%s: bf16[40, 2400] = silu %g
%u: bf16[40, 2400] = matmul %x, %up_t
%m: bf16[40, 2400] = mul %s, %u
%d: bf16[40, 2700] = matmul %m, %down_t
%r: bf16[40, 2700] = all_reduce %d op=sum group=@all
%y: bf16[40, 2700] = add %r, %r
return %y
END
rows=("$out/rows.symm" --machine h200x2 "${two[@]}" --seed 1 --compare interpreter)
for more in "" "--chaos 1" "--repeat 10000"; do
  # shellcheck disable=SC2086
  check "products of 40 rows ${more:-once}" 0 "$symmc" run "${rows[@]}" --backend cuda $more
done
# Products whose sums get a bias before they are rounded: kernels of few rows, and the library for more.
cat >"$out/biased.symm" <<'END'
program "biased" ranks 1
symbol t in 1..=512
arg %x: bf16[t, 1024]
param %w: bf16[768, 1024]
param %b: bf16[768]
%wt: bf16[1024, 768] = permute %w perm=[1, 0]
%sums: f32[t, 768] = matmul_unrounded %x, %wt
%wide: f32[768] = cast %b
%total: f32[t, 768] = add %sums, %wide
%y: bf16[t, 768] = cast %total
%z: bf16[t, 768] = gelu %y
return %y
return %z
END
for t in 1 40 512; do
  check "a bias of $t rows" 0 "$symmc" run "$out/biased.symm" --backend cuda --machine h200x2 --seed 1 --set t=$t --compare interpreter
done
check "a bias that cancels" 0 "$symmc" run "$programs/bias_cancel.pt2" --backend cuda --machine h200x2 \
  --tensors "$programs/bias_cancel.safetensors"
# Several collectives as one kernel: of several kinds, dtypes and odd sizes, by each variant that runs them so.
together() {
  local ranks=$1
  local r=$((ranks * 3))
  cat >"$out/moved$ranks.symm" <<END
program "moved" ranks $ranks
group @all world
param %p: bf16[5, 33]
param %q: f32[3, 7]
param %m: i64[3]
param %e: u8[1]
arg %x: bf16[$r, 77]
arg %y: f32[$r, 1]
arg %z: bf16[$r, 4096]
%a: bf16[$r, 77] = neg %x
%b: f32[$r, 1] = abs %y
%c: bf16[$r, 4096] = neg %z
%gp: bf16[$((5 * ranks)), 33] = all_gather %p group=@all
%gq: f32[$((3 * ranks)), 7] = all_gather %q group=@all
%gm: i64[$((3 * ranks))] = all_gather %m group=@all
%ge: u8[$ranks] = all_gather %e group=@all
%ea: bf16[$r, 77] = all_to_all %a splits=even group=@all
%eb: f32[$r, 1] = all_to_all %b splits=even group=@all
%sc: bf16[3, 4096] = reduce_scatter %c op=sum group=@all
%rp: bf16[$((5 * ranks)), 33] = neg %gp
%rq: f32[$((3 * ranks)), 7] = neg %gq
%rm: i64[$((3 * ranks))] = neg %gm
%re: u8[$ranks] = add %ge, %ge
%ra: bf16[$r, 77] = exp %ea
%rb: f32[$r, 1] = neg %eb
return %rp
return %rq
return %rm
return %re
return %ra
return %rb
return %sc
END
  grep -v '%sc\|%c:\|%z' "$out/moved$ranks.symm" >"$out/pushed$ranks.symm"
  cat >"$out/summed$ranks.symm" <<END
program "summed" ranks $ranks
group @all world
param %p: bf16[5, 33]
param %q: f32[3, 7]
param %m: i64[3]
param %e: u8[1]
param %h: f16[3, 1000]
%rp: bf16[5, 33] = all_reduce %p op=sum group=@all
%rq: f32[3, 7] = all_reduce %q op=avg group=@all
%rm: i64[3] = all_reduce %m op=min group=@all
%re: u8[1] = all_reduce %e op=max group=@all
%rh: f16[3, 1000] = all_reduce %h op=max group=@all
return %rp
return %rq
return %rm
return %re
return %rh
END
}
for ranks in 2 4; do
  together "$ranks"
  for case in "moved pull" "pushed push" "summed one_shot"; do
    read -r name variant <<<"$case"
    on=("$out/$name$ranks.symm" --machine "h200x$ranks" --variants "$variant")
    check "$name by $variant on $ranks ranks is one step" 0 bash -c '"$@" | grep -q "collectives: [567] nodes in 1 step"' \
      - "$symmc" plan "${on[@]}"
    on+=(--gpus "$(places "$ranks")" --seed 1 --compare interpreter)
    for more in "" "--chaos 1" "--repeat 10000"; do
      # shellcheck disable=SC2086
      check "$name by $variant on $ranks ranks ${more:-once}" 0 "$symmc" run "${on[@]}" --backend cuda $more
    done
  done
done
check "hf_llama_tp2, an arena of NCCL" 0 "$symmc" run "${llama[@]}" --backend cuda --arena nccl --repeat 100
# Gathers along other axes than the first, whose kernels store rows of all ranks in turn: few and many rows, by each variant that has such a
# kernel, and units of 16 bytes that end within lines of LL128.
for t in 1 3 64 1000; do
  cat >"$out/gathered$t.symm" <<END
program "gathered" ranks 2
group @w world
arg %x: bf16[$t, 1208]
arg %y: f32[$t, 6, 20]
%l: bf16[$t, 1208] = neg %x
%m: f32[$t, 6, 20] = neg %y
%g: bf16[$((2 * t)), 1208] = all_gather %l group=@w
%r: bf16[2, $t, 1208] = reshape %g
%p: bf16[$t, 2, 1208] = permute %r perm=[1, 0, 2]
%f: bf16[$t, 2416] = reshape %p
%h: f32[$((2 * t)), 6, 20] = all_gather %m group=@w
%s: f32[2, $t, 6, 20] = reshape %h
%q: f32[$t, 6, 2, 20] = permute %s perm=[1, 2, 0, 3]
%e: f32[$t, 6, 40] = reshape %q
return %f, %e
END
  for variant in ll pull; do
    for more in "" "--chaos 1" "--repeat 10000"; do
      check "gathers of $t rows by $variant${more:+, ${more#--}}" 0 "$symmc" run "$out/gathered$t.symm" --backend cuda --machine h200x2 \
        "${two[@]}" --seed 1 --compare interpreter --variants $variant --no-coalesce $more
    done
  done
done

# Tokens to the ranks of their experts and back, in each layout: few and many, of widths that are no multiple of 16 bytes, as bits
# and as weighted sums, by rows (or sums, as the compiler chooses) and by sums.
experts() {
  local name=$1 ranks=$2 dtype=$3 tokens=$4 width=$5 slots=$6 experts=$7 layout=$8 align=$9 weights=${10}
  local sections=$((experts / ranks)) operand="%w" cells
  if [ "$layout" = rank ]; then sections=$ranks; fi
  local capacity=$((ranks * tokens * slots + sections * align))
  if [ "$layout" = batched ]; then capacity=$((sections * ranks * tokens)); fi
  cells=$(seq -s, 0 $((ranks - 1)))
  {
    printf 'program "experts" ranks %s\ngroup @ep [[%s]]\n' "$ranks" "${cells//,/, }"
    printf 'arg %%x: %s[%s, %s]\narg %%logits: f32[%s, %s]\n' "$dtype" "$tokens" "$width" "$tokens" "$experts"
    if [ "$weights" != none ]; then printf 'arg %%w: %s[%s, %s]\n' "$weights" "$tokens" "$slots"; fi
    cat <<END
%scores: f32[$tokens, $slots], %ids: i64[$tokens, $slots] = topk %logits axis=1 largest=true
%all_ids: i64[$((ranks * tokens)), $slots] = all_gather %ids group=@ep
%rows: i64[$tokens, $slots], %all_rows: i64[$((ranks * tokens)), $slots], %slots: i64[$capacity], %counts: i64[$sections], %ends: i64[$sections] = route %all_ids experts=$experts align=$align layout=$layout group=@ep
%twice: $dtype[$tokens, $width] = add %x, %x
%sent: $dtype[$capacity, $width] = dispatch_rows %twice, %slots, %all_rows group=@ep
END
    if [ "$dtype" = u8 ]; then
      echo "return %sent, %slots, %rows, %counts, %ends"
    else
      local all_operand="%all_w" wide=f32
      if [ "$weights" = none ]; then operand="" all_operand=""; fi
      if [ "$dtype" = f64 ]; then wide=f64; fi
      if [ "$weights" != none ]; then
        echo "%all_w: $weights[$((ranks * tokens)), $slots] = all_gather %w group=@ep"
      fi
      cat <<END
%done: $dtype[$capacity, $width] = abs %sent
%y: $dtype[$tokens, $width] = combine_rows %done, %rows${operand:+, $operand} group=@ep
%z: $dtype[$tokens, $width], %sums: $wide[$(((ranks - 1) * tokens)), $width] = reduce_rows %done, %all_rows${all_operand:+, $all_operand} group=@ep
return %y, %z, %sums, %sent, %slots, %rows, %counts, %ends
END
    fi
  } >"$out/$name.symm"
}
number=0
for ranks in 2 4; do
  for case in "bf16 128 7168 8 256 expert 1 f32" "bf16 37 2880 4 32 rank 16 bf16" "f32 9 33 3 12 expert 8 none" \
    "u8 50 77 2 8 expert 4 none" "f16 64 1024 11 64 batched 1 f16" "f64 5 30 2 4 rank 1 f32" "bf16 1000 512 8 128 expert 128 f32"; do
    number=$((number + 1))
    # shellcheck disable=SC2086
    experts "experts$number" "$ranks" $case
    for more in "" "--variants plain" "--variants pull,ll" "--chaos 1" "--repeat 1000"; do
      # The library takes one rank for each GPU.
      if [ "$more" = "--variants plain" ] && [ "$ranks" -gt "$gpus" ]; then
        skipped=$((skipped + 1))
        continue
      fi
      # shellcheck disable=SC2086
      check "experts on $ranks ranks: $case${more:+, ${more#--}}" 0 "$symmc" run "$out/experts$number.symm" --backend cuda \
        --machine "h200x$ranks" --gpus "$(places "$ranks")" --seed 1 --compare interpreter $more
    done
  done
done

check "hf_llama_tp2, NCCL's windows" 0 "$symmc" run "${llama[@]}" --backend cuda --variants nccl_window --repeat 100
adopt=$(dirname "$symmc")/examples/adopt
if [ -x "$adopt" ]; then check "an engine's stream and communicator" 0 "$adopt" 2; fi
check "hf_llama_tp2, heuristic products" 0 "$symmc" run "${llama[@]}" --backend cuda --products heuristic
# Every op by itself, also on the values at the edges of every dtype. Compiling thousands of kernels takes its time.
compute=$(dirname "$symmc")/examples/check_compute
if [ -x "$compute" ]; then
  limit=600 check "every op" 0 "$compute"
else
  say "every op: left out, no $compute"
fi
sessions=$(dirname "$symmc")/examples/check_sessions
if [ -x "$sessions" ]; then check "sessions" 0 "$sessions"; else say "sessions: left out, no $sessions"; fi
embedding=$(dirname "$symmc")/examples/check_embedding
if [ -x "$embedding" ]; then
  limit=300 check "sessions of an engine" 0 env -C "$programs/../.." "$embedding"
else
  say "sessions of an engine: left out, no $embedding"
fi
# Exchanges of tokens from Python: gradients, and captures in graphs of the caller.
if python3 -c 'import torch, symmc' 2>/dev/null; then
  limit=200 check "symmc.moe, gradients and captured calls" 0 python3 "$(dirname "$0")/exchange.py"
else
  say "symmc.moe: left out, no PyTorch or no package symmc"
fi
in_c=$(dirname "$symmc")/examples/gpus
if [ -x "$in_c" ]; then check "two GPUs in one process, from C" 0 "$in_c"; else say "from C: left out, no $in_c"; fi
# The tokens of PyTorch's `generate`, its ranks threads and processes.
generate=$(dirname "$symmc")/examples/generate text=$(realpath "$programs/../../examples/generate")
if [ -x "$generate" ]; then
  check "generated text" 0 bash -c '"$1" --backend cuda "$2" | cmp - "$2/generated.txt"' - "$generate" "$text"
  if command -v torchrun >/dev/null; then
    check "generated text, torchrun" 0 bash -c 'torchrun --nproc-per-node 2 --no-python "$1" --backend cuda "$2" | cmp - "$2/generated.txt"' \
      - "$generate" "$text"
  fi
  check "a prompt that is too long" 2 "$generate" --backend cuda --prompt "$(printf 'x%.0s' $(seq 200))" "$text"
else
  say "generated text: left out, no $generate"
fi

# Replays with inputs that change, on a GPU for each rank; every one has the bits of the first with its inputs.
replays=$(dirname "$symmc")/examples/check_replays
many() {
  local times=$1 ranks=$2 list variant=() more=""
  shift 2
  if [ "$ranks" -gt "$gpus" ]; then return; fi
  if [ "$1" = --variant ]; then
    variant=("$1" "$2") more=" as $2"
    shift 2
  fi
  list=$(seq -s, 0 $((ranks - 1)))
  check "$(basename "${1%.*}")$more, $times other inputs" 0 "$replays" "${variant[@]}" "$times" "$list" "$@"
}
# A two-shot of a large tensor in place, which adds the residual.
for ranks in 2 4; do
  cat >"$out/large$ranks.symm" <<END
program "large" ranks $ranks
group @all world
arg %x: bf16[4096, 4096]
arg %y: bf16[4096, 4096]
%z: bf16[4096, 4096] = relu %x
%r: bf16[4096, 4096] = all_reduce %z op=sum group=@all
%s: bf16[4096, 4096] = add %r, %y
return %s
END
done
# NCCL's window collectives right behind kernels of ours, which let what follows begin early: products of few rows and of
# many, element-wise steps and softmax, small and large.
window() {
  local name=$1 ranks=$2 rows=$3 columns=$4
  cat >"$out/$name.symm" <<END
program "$name" ranks $ranks
group @all world
arg %x: bf16[$rows, $columns]
param %w: bf16[$columns, $columns]
%m: bf16[$rows, $columns] = matmul %x, %w
%a: bf16[$rows, $columns] = all_reduce %m op=sum group=@all
%g: bf16[$rows, $columns] = gelu %a
%b: bf16[$((rows * ranks)), $columns] = all_gather %g group=@all
%s: bf16[$((rows * ranks)), $columns] = softmax %b axis=1 log=false
%c: bf16[$rows, $columns] = reduce_scatter %s op=sum group=@all
%q: bf16[$rows, $columns] = mul %c, %x
%d: bf16[$rows, $columns] = all_reduce %q op=sum group=@all
return %d
END
}
for ranks in 2 4; do
  for shape in "8 256" "8 1024" "64 1024" "512 1024"; do
    read -r height width <<<"$shape"
    window "window${ranks}_${height}_$width" "$ranks" "$height" "$width"
  done
  # Few blocks that go on for long after they let what follows begin.
  cat >"$out/window${ranks}_slow.symm" <<END
program "slow" ranks $ranks
group @all world
arg %x: f32[8, 65536]
%z: f32[8, 65536] = cumsum %x axis=1
%a: f32[8, 65536] = all_reduce %z op=sum group=@all
return %a
END
done
if [ -x "$replays" ]; then
  for case in "hf_llama_tp2 2" "megatron_tp4_f32 4" "megatron_tp4_bf16 4" "moe_ep4 4"; do
    read -r name ranks <<<"$case"
    many 10000 "$ranks" "$programs/$name.pt2" "$programs/$name.safetensors"
  done
  many 10000 2 "$programs"/gpt_tp2_rank*.onnx "$programs/gpt_tp2.safetensors"
  for name in fsdp4_fw_graph fsdp4_bw_graph; do many 10000 4 "$programs/$name.pt2"; done
  for name in cache rows; do many 10000 2 "$out/$name.symm"; done
  for ranks in 2 4; do
    many 200 "$ranks" "$out/large$ranks.symm"
    for name in moved summed; do many 10000 "$ranks" "$out/$name$ranks.symm"; done
    for file in "$out/window${ranks}"_*.symm; do many 10000 "$ranks" --variant nccl_window "$file"; done
  done
else
  say "replays with other inputs: left out, no $replays"
fi

random=$(dirname "$symmc")/examples/print_programs
if [ -x "$random" ]; then
  for ranks in 2 4; do
    if [ "$ranks" -gt "$gpus" ]; then continue; fi
    selected "random programs, $ranks ranks" || continue
    count=$((count + 1))
    "$(dirname "$0")/random.sh" "$symmc" "$out" "$ranks" 20 "$gpus" >"$out/random$ranks.log" || failed=$((failed + 1))
    say "$(tail -1 "$out/random$ranks.log")"
  done
else
  say "random programs: left out, no $random"
fi

# A cache that was damaged is as good as none.
damaged() {
  export XDG_CACHE_HOME=$out/cache
  "$symmc" run "${llama[@]}" --backend cuda && for file in "$out"/cache/symmc/*; do printf 'x' >>"$file"; done &&
    "$symmc" run "${llama[@]}" --backend cuda
}
export -f damaged
export symmc out
check "hf_llama_tp2, damaged cache" 0 bash -c "llama=($(printf '%q ' "${llama[@]}")); damaged"

sanitizer=/usr/local/cuda/bin/compute-sanitizer
sanitized=("$sanitizer" --target-processes all --error-exitcode 9 "$symmc" run "${llama[@]}" --backend cuda --timeout 60)
if [ ! -x "$sanitizer" ]; then
  say "compute-sanitizer: left out, no $sanitizer"
elif timeout 90 "${sanitized[@]}" 2>&1 | grep -q "Device not supported"; then
  say "compute-sanitizer: left out, it does not know this machine"
else
  check "hf_llama_tp2, compute-sanitizer" 0 "${sanitized[@]}"
  sanitized=("${sanitized[@]:0:6}" run "${rows[@]}" --backend cuda --timeout 60)
  check "products of 40 rows, compute-sanitizer" 0 "${sanitized[@]}"
fi
check "more ranks than GPUs" 2 "$symmc" run "${llama[@]:0:5}" --backend cuda --gpus 0,99

# The profile with NCCL faster than anything, so that plans take it.
python3 - "$(dirname "$0")/../../ir/src/machine/h200x2.json" "$out/nccl.json" <<'END'
import json, sys
profile = json.load(open(sys.argv[1]))
for curve in profile["curves"]:
    if curve["variant"] == "plain":
        curve["points"] = [[size, us / 1000] for size, us in curve["points"]]
json.dump(profile, open(sys.argv[2], "w"))
END
nccl=("${llama[@]:0:3}" --machine "$out/nccl.json")

# A rank that is killed or stopped ends the run everywhere, and leaves nothing; what ends it names a step.
for signal in KILL STOP KILL-NCCL STOP-NCCL; do
  selected "SIG$signal of a rank" || continue
  count=$((count + 1))
  if [ "${signal#*-}" = NCCL ]; then on=("${nccl[@]}"); else on=("${llama[@]}"); fi
  "$symmc" run "${on[@]}" --backend cuda --repeat 100000000 --timeout 5 >"$out/$signal.log" 2>&1 &
  launcher=$!
  sleep 6
  victim=$(pgrep -P $launcher | tail -1) start=$(date +%s%N)
  # A run that had ended before would look like one that the signal ended.
  if [ -z "$victim" ] || ! kill -${signal%-*} "$victim"; then victim=; fi
  wait $launcher
  code=$? took=$((($(date +%s%N) - start) / 1000000))
  left=$(pgrep -x symmc | wc -l)
  verdict=ok
  if [ -z "$victim" ] || [ $code != 1 ] || [ $took -gt 10000 ] || [ "$left" != 0 ]; then verdict=FAILED failed=$((failed + 1)); fi
  say "SIG$signal of a rank: $verdict after $took ms: $(tail -1 "$out/$signal.log")"
done
say "$count checks, $failed failed, $skipped skipped; processes on the GPUs: $(nvidia-smi --query-compute-apps=pid --format=csv,noheader | wc -l)"
[ $failed = 0 ]
