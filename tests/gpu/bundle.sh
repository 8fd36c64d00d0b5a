#!/usr/bin/env bash
# Builds everything with CUDA and packs build/ovq-gpu.tar.xz: programs, the shared libraries they
# need, the tests' data, the shipped model and the scripts, for a machine that has a GPU and
# python3 but none of our packages. glibc (as old as this machine's or newer), the driver and cuBLAS
# come from there.
#
#   tests/gpu/bundle.sh     prints the bundle's size
#
# The bundle is at most 44 MB, and with the tracked files beside it at most 64 MiB, or it is an error: a checkout that
# is carried along leaves out models/ and tests/golden/, as what tests on a GPU need of them is in the
# bundle (git sparse-checkout set --no-cone '/*' '!/models/' '!/tests/golden/').
#
# Carry the one file (build/ is ignored by git, so name it to whatever copies the checkout) and run
#   tests/gpu/run.sh build/ovq-gpu.tar.xz
# there, or without a checkout: tar xf ovq-gpu.tar.xz && ovq-gpu/tests/gpu/run.sh
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
cd "$(dirname "$0")/../.."
tracked=$(git ls-files -z ':!models' ':!tests/golden' | xargs -0 stat -c %s | awk '{ sum += $1 } END { print sum }')
max_bytes=$(((64 << 20) - tracked))
if [ $max_bytes -gt 44000000 ]; then max_bytes=44000000; fi
programs=(kernels_tests model_tests engine_tests attend_mutant bench_cuda ovq-server ovq-chat ovq-load)
# Not packed: glibc's own, the driver's, and what CUDA's toolkit brings there.
left_out='^(ld-linux-x86-64|lib(c|m|dl|pthread|rt|resolv|util|cuda|cudart|cublas|cublasLt))\.so'

PATH="$PATH:/usr/local/cuda/bin"
cmake --preset cuda
cmake --build --preset cuda --target "${programs[@]}" ovq_pieces

bin=build/cuda/bin
stage=build/ovq-gpu
rm -rf "$stage"
mkdir -p "$stage"/{bin,lib,tests}
for file in "${programs[@]}" libovq_pieces.so; do
  strip --strip-unneeded -o "$stage/bin/$file" "$bin/$file"
done
if missing=$(ldd "$stage"/bin/* | grep 'not found'); then
  printf 'bundle: %s\n' "$missing" >&2
  exit 1
fi
ldd "$stage"/bin/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  while IFS= read -r library; do
    name=$(basename "$library")
    if [[ ! $name =~ $left_out ]]; then strip --strip-unneeded -o "$stage/lib/$name" "$library"; fi
  done

cp -r tests/golden tests/gpu "$stage/tests/"
find "$stage" -name __pycache__ -prune -exec rm -r {} +
mkdir "$stage/models"
cp -r models/python-bytes "$stage/models/"
tests/gpu/manifest.sh >"$stage/manifest.json"

# -9: it looks back far enough to find the kernels of one program in the next.
tar -C build -c --owner=0 --group=0 --sort=name ovq-gpu | xz -9 >build/ovq-gpu.tar.xz.part
mv build/ovq-gpu.tar.xz.part build/ovq-gpu.tar.xz
bytes=$(stat -c %s build/ovq-gpu.tar.xz)
printf 'build/ovq-gpu.tar.xz: %s bytes, unpacked %s\n' "$bytes" "$(du -sh "$stage" | cut -f1)"
if [ "$bytes" -gt "$max_bytes" ]; then
  echo "bundle: larger than $max_bytes bytes" >&2
  exit 1
fi
