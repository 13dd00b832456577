#!/usr/bin/env bash
# Builds the package, checks its types, installs it into a fresh environment and runs its tests. Those of torch.compile run
# where PyTorch is installed, those of models where transformers is as well; ends with the reliability trials of ranks in
# Python. PYTHON names the interpreter that may have them.
# PROFILE names a profile of cargo other than release: `dev` takes what `cargo test` has built of its dependencies.
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
if "$python" -c 'import torch' 2>/dev/null; then
  site=$("$folder/env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/others.pth"
fi
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check numpy 'mypy>=1.18,<3'
"$folder/env/bin/python" -m mypy --no-error-summary --cache-dir "$folder/mypy"
"$folder/env/bin/python" -m pip install --quiet --disable-pip-version-check .
# From elsewhere, so that the installed package is what runs.
tests=$PWD/tests
example=$PWD/../../examples/python/two_ranks.py
trials=$PWD/../../tests/reliability/trials.py
cd "$folder"
if "$folder/env/bin/python" -c 'import torch' 2>/dev/null; then
  echo "with PyTorch $("$folder/env/bin/python" -c 'import torch; print(torch.__version__)')"
  "$folder/env/bin/python" "$example"
else
  echo "without PyTorch: the tests of torch.compile are left out"
fi
"$folder/env/bin/python" -W ignore -m unittest discover -s "$tests"
"$folder/env/bin/symmc" --version
echo "kills, stops and drops of ranks in Python"
"$trials" --forms python --no-skips --trials 10 --limit 2 --symmc "$folder/env/bin/symmc" --python "$folder/env/bin/python"
