#!/usr/bin/env bash
# Fuzzes the targets fuzz_NAME.cc with libFuzzer under the address and undefined-behaviour sanitizers,
# for so many minutes each, from the inputs in corpus/NAME. What is new stays in build/fuzz/corpus/NAME,
# findings go to a folder of this run, build/fuzz/findings/TIME/NAME. Prints a table; exits with 1 if
# there is a finding.
#
#   tests/fuzz/run.sh [--minutes M] [--timeout S] [--merge] [--built] [TARGET ...]
#
# An input that takes longer than --timeout seconds (20) is a finding; on a busy machine or at a low priority
# it needs more. --built takes the programs of build/fuzz as they are, so that several of these can run side by side,
# each with targets of its own. --merge adds what reaches more branches, in inputs of at most 8 KiB, to
# corpus/NAME, which ctest reads.
set -euo pipefail
cd "$(dirname "$0")/../.."

minutes=1 timeout=20 merge=false built=false names=()
while [ $# -gt 0 ]; do
  case "$1" in
    --minutes) minutes=$2; shift ;;
    --timeout) timeout=$2; shift ;;
    --merge) merge=true ;;
    --built) built=true ;;
    -*) echo "run.sh: $1: expected --minutes M, --timeout S, --merge, --built or targets" >&2; exit 2 ;;
    *) names+=("$1") ;;
  esac
  shift
done
[ ${#names[@]} -gt 0 ] || mapfile -t names < <(basename -s .cc -a tests/fuzz/fuzz_*.cc | sed s/^fuzz_//)

# What each target is for: these files should be reached.
declare -A files=(
  [config]="model/load_config.cc model/families"
  [weights]="model/safetensors.cc model/weights.cc"
  [quantization]="model/quantization.cc"
  [gguf]="model/gguf model/tokenizers/gguf_tokenizer.cc"
  [pieces]="model/piece_model.cc"
  [constraint]="model/constraint"
  [text]="server/engine/common/answer.cc base/text.cc"
  [tokenizer]="model/tokenizers model/tokenizer.cc"
  [engine]="server/engine/sessions/session_table.cc server/engine/sessions/session_create.cc server/engine/sessions/session_rewind.cc server/engine/sessions/session_turns.cc server/engine/sessions/session_removal.cc server/engine/common/admission.cc server/engine/common/quota.cc server/engine/scheduling/batch_planner.cc server/engine/common/checkpoints.cc server/engine/common/prefix_cache.cc server/engine/common/state_pool.cc"
  [messages]="server/calls/convert.cc server/rpc/grpc_codec.cc server/calls/conversation.cc server/engine/common/validate.cc"
  [http]="server/http/body_fields.cc server/http/http_body.cc server/apis/http_api.cc server/apis/openai_request.cc server/apis/openai_answer.cc server/apis/response_calls.cc"
  [tenants]="server/access/tenants.cc server/engine/common/quota.cc base/json.cc"
  [options]="server/options.cc base/flags.cc base/flag_values.cc base/values.cc server/telemetry/trace_context.cc server/telemetry/log.cc"
)

deploy/install_packages.sh clang-14 libomp-14-dev llvm-14 >/dev/null
if ! "$built"; then
  cmake --preset fuzz >/dev/null
  cmake --build --preset fuzz --target "${names[@]/#/fuzz_}" | tail -n 1
fi
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 OMP_NUM_THREADS=1

failed=0 run=$(date +%Y%m%d-%H%M%S)
printf '| target | minutes | executions | inputs kept | lines reached of its files | findings |\n'
printf '|---|---:|---:|---:|---:|---:|\n'
for name in "${names[@]}"; do
  program=build/fuzz/bin/fuzz_$name seeds=tests/fuzz/corpus/$name
  work=build/fuzz/corpus/$name findings=build/fuzz/findings/$run/$name log=build/fuzz/$name.log
  mkdir -p "$work" "$findings"
  # The bookkeeping of entropic choices takes longer than most inputs. Without the prefix, findings are
  # written into the current folder.
  fuzz=("$program" -entropic=0 -artifact_prefix="$findings/")
  LLVM_PROFILE_FILE=/dev/null "${fuzz[@]}" -max_total_time=$((minutes * 60)) -timeout="$timeout" \
    -rss_limit_mb=3000 -print_final_stats=1 -max_len=8192 "$work" "$seeds" >"$log" 2>&1 || failed=1
  if "$merge"; then
    LLVM_PROFILE_FILE=/dev/null "${fuzz[@]}" -merge=1 -use_counters=0 -max_len=8192 "$seeds" "$work" >>"$log" 2>&1
  fi
  LLVM_PROFILE_FILE=build/fuzz/$name.profraw "${fuzz[@]}" -runs=0 "$work" "$seeds" >>"$log" 2>&1 || failed=1
  llvm-profdata-14 merge -sparse "build/fuzz/$name.profraw" -o "build/fuzz/$name.profdata"
  # By hand, because its own filter knows files only as the compiler was told of them.
  lines=$(llvm-cov-14 export -summary-only "$program" -instr-profile="build/fuzz/$name.profdata" |
    python3 -c '
import json, os, sys
at = [os.path.abspath(path) for path in sys.argv[1].split()]
counts = [file["summary"]["lines"] for file in json.load(sys.stdin)["data"][0]["files"]
          if any((os.path.abspath(file["filename"]) + "/").startswith(path + "/") for path in at)]
print("%.1f%%" % (100 * sum(c["covered"] for c in counts) / sum(c["count"] for c in counts)))' "${files[$name]}")
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | head -n 1)
  printf '| %s | %s | %s | %s | %s | %s |\n' "$name" "$minutes" "${executions:-ended early}" \
    "$(find "$work" -type f | wc -l)" "$lines" "$(find "$findings" -type f | wc -l)"
  [ -z "$(find "$findings" -type f)" ] || failed=1
done
echo "logs: build/fuzz/NAME.log; findings: build/fuzz/findings/$run"
exit "$failed"
