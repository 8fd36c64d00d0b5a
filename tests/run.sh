#!/usr/bin/env bash
# Builds everything for the CPU and runs all tests, as many at once as there are cores. Arguments
# go to ctest: tests/run.sh -L unit
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset cpu
cmake --build --preset cpu
exec ctest --preset cpu --parallel "$(nproc)" --output-on-failure "$@"
