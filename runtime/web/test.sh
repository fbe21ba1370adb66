#!/usr/bin/env bash
# Builds and tests the JavaScript runtime: test.sh [PYTHON], which must have edgelm with the extras train and test.
set -euo pipefail
cd "$(dirname "$0")"
python="${1:-python}"
"$python" test/expectations.py test/data &
expectations=$!
trap 'kill "$expectations" 2>/dev/null || true' EXIT
npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
npm run --silent build # checks the types too
wait "$expectations"
npm test
