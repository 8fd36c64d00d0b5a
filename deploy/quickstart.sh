#!/usr/bin/env bash
# From a clone to a streamed answer: installs what is missing, builds, starts a server with the
# model that ships with the source, asks one question and stops the server.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'HELP'
Usage: deploy/quickstart.sh [--keep] [--prompt TEXT]
  --keep         leave the server running and say how to talk to it
  --prompt TEXT  the beginning that the model is to continue
HELP
}

say() { printf '\n== %s\n' "$*"; }
die() {
  printf 'quickstart: %s\n' "$*" >&2
  exit 1
}

keep=false
prompt=$'import os\nimport sys\n\n\ndef walk(top):\n    """'
while [ $# -gt 0 ]; do
  case "$1" in
    --keep) keep=true ;;
    --prompt)
      [ $# -ge 2 ] || die "--prompt needs a text"
      prompt=$2
      shift
      ;;
    --help) usage; exit 0 ;;
    *) usage >&2; die "unknown argument $1" ;;
  esac
  shift
done

model=models/python-bytes
[ -f "$model/config.json" ] || die "$model is missing: run this from a whole clone"

say "Packages"
deploy/install_packages.sh

say "Build (the first time takes several minutes)"
if ! configured=$(cmake --preset cpu 2>&1); then
  echo "$configured" >&2
  die "cmake --preset cpu failed"
fi
cmake --build --preset cpu --target ovq-server ovq-chat ovq-load ovq-inspect

bin=$PWD/build/cpu/bin
log=$PWD/build/cpu/quickstart.log
server_pid=
stop_server() {
  [ -n "$server_pid" ] || return 0
  kill "$server_pid" 2>/dev/null || true
  wait "$server_pid" 2>/dev/null || true
}
trap stop_server EXIT

say "Server"
nohup "$bin/ovq-server" --model "$model" --listen 127.0.0.1:0 --metrics-address 127.0.0.1:0 \
  >"$log" 2>&1 &
server_pid=$!
address=
for _ in $(seq 300); do
  address=$(sed -n 's/^listening on //p' "$log")
  [ -z "$address" ] || break
  kill -0 "$server_pid" 2>/dev/null || { cat "$log" >&2; die "the server did not start"; }
  sleep 0.1
done
[ -n "$address" ] || { cat "$log" >&2; die "the server was not ready within 30 seconds"; }
echo "ovq-server serves $model on $address (log: $log)"

say "Question"
printf '%s' "$prompt"
"$bin/ovq-chat" --server "$address" --prompt "$prompt" --max-tokens 300 --temperature 0.8 \
  --top-p 0.9 --seed 1
echo

if "$keep"; then
  trap - EXIT
  say "The server keeps running as process $server_pid"
  echo "stop it:  kill $server_pid"
else
  say "What to try next"
  echo "start it:                  build/cpu/bin/ovq-server --model $model"
fi
export_server="OVQ_SERVER=$address "
"$keep" || export_server=
cat <<NEXT
talk to it:                ${export_server}build/cpu/bin/ovq-chat    (then /help)
see what it would hold:    build/cpu/bin/ovq-server --model $model --plan --state-memory 1G
put load on it:            ${export_server}build/cpu/bin/ovq-load --concurrency 8 --requests 200
look into another model:   build/cpu/bin/ovq-inspect FOLDER
read on:                   README.md, docs/serving.md, docs/chat.md
NEXT
