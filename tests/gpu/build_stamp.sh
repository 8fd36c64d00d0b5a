#!/usr/bin/env bash
# Writes a C++ source that says what a program is built from: the hash of its sources, and the
# compilers and flags, as JSON after the words by which gpu_run.py finds it in a program.
#
#   build_stamp.sh ROOT FLAGS OUT     FLAGS: a file with the compilers and flags
set -euo pipefail
root=$1 flags=$2 out=$3
sources=$("$(dirname "$0")/source_hash.sh" "$root")
hash=$(sha256sum <"$flags" | cut -d' ' -f1)
text=$(tr -s '\n' ' ' <"$flags" | tr -d '"\\')
cat >"$out" <<CC
// Written by tests/gpu/build_stamp.sh.
extern const char kBuildStamp[];
[[gnu::used]] const char kBuildStamp[] = R"(ovq-build: {"source_hash": "$sources", "flags_hash": "$hash", "flags": "$text"})";
CC
