#!/usr/bin/env bash
# Prints what a build is made of, as JSON: the hash of the GPU's sources and the commit, if known.
set -euo pipefail
cd "$(dirname "$0")/../.."
commit=$(git rev-parse HEAD 2>/dev/null || true)
dirty=false
if [ -n "$commit" ] && [ -n "$(git status --porcelain --untracked-files=no)" ]; then dirty=true; fi
printf '{"source_hash": "%s", "git_commit": "%s", "git_dirty": %s}\n' \
  "$(tests/gpu/source_hash.sh)" "$commit" "$dirty"
