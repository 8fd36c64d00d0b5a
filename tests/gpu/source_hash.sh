#!/usr/bin/env bash
# Prints the SHA-256 of the sources that decide what the GPU computes and what is measured, so that a
# result file says which it belongs to. The programs have it in them, too (build_stamp.cmake).
#
#   source_hash.sh [--list] [ROOT]     ROOT: a checkout, by default this one
#
# Every .cu and .cuh under kernels/, the .cc files that call them, the model's forward pass, the
# benchmark, and what these include from kernels/, base/, model/ and tests/bench/, headers with their
# own .cc. Paths and contents count; files of other devices do not.
set -euo pipefail
export LC_ALL=C
list=false
if [ "${1:-}" = --list ]; then
  list=true
  shift
fi
cd "${1:-$(dirname "$0")/../..}"
[ -d kernels ] || { echo "source_hash: no kernels/ in $PWD" >&2; exit 1; }

declare -A seen=()
queue=()
add() {
  if [ -f "$1" ] && [ -z "${seen[$1]:-}" ]; then
    seen[$1]=1
    queue+=("$1")
  fi
}
while IFS= read -r file; do add "$file"; done < <(
  printf '%s\n' model/language_model.cc tests/bench/{bench_cuda.cc,cuda_{model,ovq,product}_bench.cc,cuda_meter.cu}
  find kernels -name '*.cu' -o -name '*.cuh'
  grep -rlE --include='*.cc' 'cuda::|Cuda[(>]' kernels || true)
while [ ${#queue[@]} -gt 0 ]; do
  files=("${queue[@]}")
  queue=()
  for file in "${files[@]}"; do
    if [[ $file == *.h ]]; then add "${file%.h}.cc"; fi
  done
  while IFS= read -r included; do add "$included"; done < <(
    sed -n 's/^#include "\(\(kernels\|base\|model\|tests\/bench\)\/[^"]*\)".*/\1/p' "${files[@]}")
done

mapfile -t files < <(printf '%s\n' "${!seen[@]}" | sort)
if "$list"; then
  printf '%s\n' "${files[@]}"
else
  sha256sum -- "${files[@]}" | sha256sum | cut -d' ' -f1
fi
