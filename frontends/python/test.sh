#!/usr/bin/env bash
# Builds the package, checks its types, installs it into a fresh environment and runs its tests and the reliability trials of ranks in
# Python. Tests of torch.compile need PyTorch, tests of models need transformers too: they are skipped elsewhere, and listed.
# PYTHON names an interpreter, whose packages the tests may use if it has PyTorch.
# PACKAGES names a folder of packages with PyTorch instead.
# SAMPLE=1 runs a sample of the tests, a few minutes long.
# PROFILE names a profile of cargo other than release: `dev` uses the dependencies that `cargo test` has built.
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-python3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export PYTHONDONTWRITEBYTECODE=1
if [ -n "${PROFILE:-}" ]; then
  export MATURIN_PEP517_ARGS="--profile $PROFILE --locked"
  export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/../../target}
fi

"$python" -m venv "$folder/env"
packages=${PACKAGES:-}
if [ -z "$packages" ] && "$python" -c 'import torch' 2>/dev/null; then
  packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
fi
if [ -n "$packages" ]; then
  site=$("$folder/env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  echo "$packages" > "$site/others.pth"
fi
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check numpy onnx expecttest 'mypy>=1.18,<3'
"$folder/env/bin/python" -m mypy --no-error-summary --cache-dir "$folder/mypy"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check .
# From elsewhere, so that the installed package is what runs.
tests=$PWD/tests
examples=$PWD/../../examples/python
trials=$PWD/../../tests/reliability/trials.py
cd "$folder"
if "$folder/env/bin/python" -c 'import torch' 2>/dev/null; then
  echo "with PyTorch $("$folder/env/bin/python" -c 'import torch; print(torch.__version__)')"
  "$folder/env/bin/python" "$examples/two_ranks.py"
  "$folder/env/bin/python" "$examples/experts.py"
fi
"$folder/env/bin/python" -W ignore "$tests/run.py" ${SAMPLE:+--sample}
"$folder/env/bin/symmc" --version
echo "kills, stops and drops of ranks in Python"
"$trials" --forms python --no-skips --trials 10 --limit 2 --symmc "$folder/env/bin/symmc" --python "$folder/env/bin/python"
