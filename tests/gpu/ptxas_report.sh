#!/usr/bin/env bash
# Prints registers, stack, spills, static shared memory and barriers of every kernel for each
# architecture, from the commands of a configured build of preset `cuda`, by default in build/cuda.
#
#   tests/gpu/ptxas_report.sh [BUILD_FOLDER] [FILE_PATTERN]     e.g. build/cuda attend
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH="$PATH:/usr/local/cuda/bin"
build=${1:-build/cuda}
pattern=${2:-.}
[ -f "$build/build.ninja" ] || cmake --preset cuda >/dev/null

printf '%-6s %5s %6s %6s %6s %7s %4s  %s\n' arch regs stack stores loads shared bars kernel
ninja -C "$build" -t commands kernels | grep -E ' -c [^ ]*\.cu( |$)' | grep -E -- "$pattern" |
  sed -E 's/^[^ ]*ccache //; s/ -MD -MT [^ ]+ -MF [^ ]+//; s/ -o [^ ]+/ -o \/dev\/null/' |
  while IFS= read -r command; do
    (cd "$build" && eval "$command -Xptxas -v" 2>&1 </dev/null) || true
  done |
  awk '
    /Compiling entry function/ {
      match($0, /entry function .*. for .sm_[0-9a-z]+/)
      split($0, quoted, "\047")
      name = quoted[2]; arch = quoted[4]
    }
    /bytes stack frame/ { stack = $1; stores = $5; loads = $9 }
    /: Used [0-9]+ registers/ {
      shared = 0; bars = 0; registers = 0
      for (i = 1; i <= NF; ++i) {
        if ($i == "Used") registers = $(i + 1)
        if ($i ~ /^smem/) shared = $(i - 2)
        if ($i ~ /^barriers/) bars = $(i - 1)
      }
      printf "%-6s %5d %6d %6d %6d %7d %4d  %s\n", arch, registers, stack, stores, loads, shared, bars, name
    }
    /error|warning/ { print }
  ' | c++filt | sort -k8 -k1,1
