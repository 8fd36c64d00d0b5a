#!/usr/bin/env bash
# On a machine with a GPU: tests and measures everything within eight minutes and writes
# docs/gpu-results/<date>.json. Never changes a setting of the GPU.
#
#   tests/gpu/run.sh BUNDLE [flags]   programs that tests/gpu/bundle.sh packed; needs python3 only
#   tests/gpu/run.sh [flags]          builds preset `cuda` here first; needs deploy/packages.txt
#
# Flags: --budget SECONDS (default 460), --out FOLDER (for a copy of the result), --only STAGE,... and
# --skip STAGE,... of tests, bench, serve, load, sdpa, ncu, bench_int8, sanitizers.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bundle=
case "${1:-}" in
  "" | --*) ;;
  *) bundle=$1; shift ;;
esac

out=(--out "$root/docs/gpu-results")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -f "$root/manifest.json" ] && [ -z "$bundle" ]; then  # inside an unpacked bundle
  python3 "$here/gpu_run.py" --root "$root" "${out[@]}" "$@"
elif [ -n "$bundle" ]; then
  python3 - "$bundle" "$work" <<'PYTHON'
import sys, tarfile
with tarfile.open(sys.argv[1]) as bundle:
    bundle.extractall(sys.argv[2], **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
PYTHON
  python3 "$work/ovq-gpu/tests/gpu/gpu_run.py" --root "$work/ovq-gpu" "${out[@]}" "$@"
else
  PATH="$PATH:/usr/local/cuda/bin"
  cd "$root"
  if ! { cmake --preset cuda && cmake --build --preset cuda; } >"$work/build.log" 2>&1; then
    tail -n 30 "$work/build.log" >&2
    echo "run.sh: no build here; bring a bundle (tests/gpu/bundle.sh --help)" >&2
    exit 1
  fi
  ln -s "$root/tests" "$root/models" "$work"
  "$here/manifest.sh" >"$work/manifest.json"
  python3 "$here/gpu_run.py" --root "$work" --bin "$root/build/cuda/bin" "${out[@]}" "$@"
fi
