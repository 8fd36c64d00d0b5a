#!/usr/bin/env bash
# Includes point down only: kernels <- model <- server (the engine's files without gRPC) <- gRPC.
set -u
cd "$(dirname "$0")/.."
fail=0
forbid() {  # forbid "files" "pattern": no #include of pattern in files
  local hits
  hits=$(grep -nE "^#include [<\"]($2)" $1 2>/dev/null)
  if [ -n "$hits" ]; then
    printf 'includes that point up:\n%s\n' "$hits"
    fail=1
  fi
}
kernels=$(find kernels -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
forbid "$kernels" 'model/|server/|clients/|grpc|google/protobuf|ovq/v1|nlohmann|prometheus'
forbid "$(find model -name '*.cc' -o -name '*.h')" 'server/|clients/|grpc|google/protobuf|ovq/v1|prometheus'
engine=""
for stem in request state_pool scheduler session answer validate quota job 'log*' call_summary \
  trace_context 'engine*'; do
  engine="$engine $(ls server/$stem.cc server/$stem.h 2>/dev/null)"
done
forbid "$engine" 'clients/|grpc|google/protobuf|ovq/v1|prometheus'
forbid "$(find clients -name '*.cc' -o -name '*.h')" 'kernels/|model/|server/'
exit $fail
