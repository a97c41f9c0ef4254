#!/usr/bin/env bash
# Writes the README's table of accuracy from `cargo xtask validate`. Give a file with its output to skip the run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scores=${1:-$(mktemp)}
[ $# -gt 0 ] || cargo run --quiet -p xtask -- validate >"$scores" || true

table=$(mktemp)
{
    echo "| predicted against measured | today | goal | |"
    echo "|---|---:|---:|---|"
    sed -n '/^bars:/,$p' "$scores" | sed -nE \
        's/^(.*[^ ]) +([0-9.]+ %|-) +(at (least|most) [0-9.]+ %) +(PASS|MISS by [0-9.]+ %|no case).*$/| \1 | \2 | \3 | \5 |/p' |
        sed -e 's/| PASS |/| reached |/' -e 's/| MISS by \([0-9.]*\) % |/| missed by \1 |/' -e 's/| no case |/| not measured yet |/'
} >"$table"
[ "$(wc -l <"$table")" -gt 4 ] || { echo "no bars in $scores" >&2; exit 1; }

awk -v table="$table" '
    /<!-- accuracy/ { print; while ((getline line < table) > 0) print line; skip = 1; next }
    /<!-- end of accuracy/ { skip = 0 }
    !skip { print }' README.md >README.md.new
mv README.md.new README.md
