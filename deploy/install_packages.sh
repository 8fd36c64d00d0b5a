#!/usr/bin/env bash
# Installs the Debian packages named as arguments, by default those of packages.txt, with
# `--part build`, `run` or `test` those of that part; only what is missing, with sudo when not root.
set -euo pipefail
cd "$(dirname "$0")"

packages=("$@")
if [ $# -eq 0 ]; then
  mapfile -t packages < <(grep -v -e '^#' -e '^$' packages.txt)
elif [ "$1" = --part ]; then
  mapfile -t packages < <(
    awk -v part="${2:-}" '/^# part: / { on = $3 == part "," } /^[^#]/ && on' packages.txt)
  if [ ${#packages[@]} -eq 0 ]; then
    echo "install_packages: --part: expected build, run or test, got '${2:-}'" >&2
    exit 2
  fi
fi

if ! command -v apt-get >/dev/null; then
  echo "install_packages: no apt-get here; install what matches these packages of Debian 12:" >&2
  echo "  ${packages[*]}" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [ "$state" = "install ok installed" ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "install_packages: everything is installed"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install_packages: neither root nor sudo; have these installed: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "install_packages: installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends "${missing[@]}"

# These packages start services that are not wanted here, because tests start their own. Services
# that were installed before are not touched.
for service in haproxy prometheus redis-server; do
  if [[ " ${missing[*]} " == *" $service "* ]] && [ -d /run/systemd/system ]; then
    "${as_root[@]}" systemctl disable --now "$service.service"
  fi
done
