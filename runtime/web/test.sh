#!/usr/bin/env bash
# Builds and tests the JavaScript runtime: test.sh [PYTHON], which must have edgelm with the extras train and test.
set -euo pipefail
cd "$(dirname "$0")"
npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
npm run --silent check
npm run --silent build
"${1:-python}" test/expectations.py test/data
npm test
