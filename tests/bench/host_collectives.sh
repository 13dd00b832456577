#!/bin/sh
# Compares the host collectives with Open MPI (Debian: openmpi-bin, libopenmpi-dev), both measured in turn on
# this machine, in many short rounds, because virtual processors move.
# Arguments: ranks (2), largest size in KiB (16384), rounds (15).
# Prints a table of medians; $KEEP, if set, names a file for the measurements.
set -eu
ranks=${1:-2} largest=${2:-16384} rounds=${3:-15}
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
target=${CARGO_TARGET_DIR:-$root/target}
cargo build --quiet --release --manifest-path "$root/Cargo.toml" -p symmc-runtime --example host_collectives
bench=$target/release/examples/host_collectives
mpicc -O3 -march=native -o "$work/openmpi" "$root/tests/bench/openmpi_collectives.c"
for round in $(seq "$rounds"); do
    "$bench" measure "$ranks" "$largest" >> "$work/measured"
    mpirun -n "$ranks" --allow-run-as-root --oversubscribe "$work/openmpi" "$largest" >> "$work/measured"
done
"$bench" table "$work/measured"
if [ -n "${KEEP:-}" ]; then cp "$work/measured" "$KEEP"; fi
