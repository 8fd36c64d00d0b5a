#!/usr/bin/env bash
# From a clone to a chat: installs what is missing, builds, starts a server with the chat model that
# ships with the source, talks to it, with tools that the model calls, and stops the server.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'HELP'
Usage: deploy/quickstart.sh [--keep] [TEXT...]
  --keep   leave the server running and say how to talk to it
  TEXT...  what to say to the model, turn by turn
HELP
}

say() { printf '\n== %s\n' "$*"; }
die() {
  printf 'quickstart: %s\n' "$*" >&2
  exit 1
}

keep=false
texts=()
while [ $# -gt 0 ]; do
  case "$1" in
    --keep) keep=true ;;
    --help) usage; exit 0 ;;
    -*) usage >&2; die "unknown argument $1" ;;
    *) texts+=("$1") ;;
  esac
  shift
done
[ ${#texts[@]} -gt 0 ] || texts=("Hello. Who are you?" "My dog's name is Rex." "What is 1234 * 56?"
  "Write 'buy milk' to notes.txt." "What is in notes.txt?" "What is my dog's name?")

model=models/scripted-chat
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
nohup "$bin/ovq-server" --model "$model" --listen 127.0.0.1:0 --http-listen 127.0.0.1:0 \
  --metrics-address 127.0.0.1:0 >"$log" 2>&1 &
server_pid=$!
address=
for _ in $(seq 300); do
  address=$(sed -n 's/^listening on //p' "$log")
  [ -z "$address" ] || break
  kill -0 "$server_pid" 2>/dev/null || { cat "$log" >&2; die "the server did not start"; }
  sleep 0.1
done
[ -n "$address" ] || { cat "$log" >&2; die "the server was not ready within 30 seconds"; }
http=$(sed -n 's/^ovq-server: http on //p' "$log")
echo "ovq-server serves $model on $address and $http (log: $log)"

say "Chat (a call to a tool -> its result; the tools are clients/python/examples/tools.py)"
python3 clients/python/examples/tools.py --server "$http" "${texts[@]}"

if "$keep"; then
  trap - EXIT
  say "The server keeps running as process $server_pid"
  echo "stop it:                   kill $server_pid"
  echo "in a browser:              $http/"
else
  say "What to try next"
  echo "start it:                  build/cpu/bin/ovq-server --model $model --http-listen 127.0.0.1:8080"
  echo "in a browser:              http://127.0.0.1:8080/"
fi
export_server="OVQ_SERVER=$address "
"$keep" || export_server=
cat <<NEXT
talk to it:                ${export_server}build/cpu/bin/ovq-chat    (then /help)
see what it would hold:    build/cpu/bin/ovq-server --model $model --plan --state-memory 1G
put load on it:            ${export_server}build/cpu/bin/ovq-load --concurrency 8 --requests 200
look into another model:   build/cpu/bin/ovq-inspect FOLDER
read on:                   README.md, docs/http.md, docs/serving.md, docs/chat.md
NEXT
