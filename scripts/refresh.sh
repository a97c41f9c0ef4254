#!/usr/bin/env bash
# Writes everything that is made from the program anew: references, man pages, snapshots of whole runs, documentation
# examples, pictures, and the README's table of accuracy. Read the diff before you commit it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo run --quiet -p xtask -- references
PLIMSOLL_BLESS=1 cargo test --quiet -p plimsoll-cli
bash scripts/accuracy.sh
git status --short
