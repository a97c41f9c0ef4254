#!/usr/bin/env bash
# The page of a recording of 5 million events in Chromium: size, time to the first picture, frames while panning and
# zooming, memory. See bench/README.md.
#
# usage: bench/page.sh [EVENTS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/page_environment.sh

prepare_page_environment || { echo "$missing" >&2; exit 2; }
events=${1:-5000000}
cache=${PLIMSOLL_BENCH_CACHE:-target/bench}
file=$cache/page-$events.pickle
mkdir -p "$cache"
cargo build --release --locked --quiet -p plimsoll-cli
[ -f "$file" ] || cargo xtask synthesize-snapshot --events "$events" --depth 12 "$file"
TIMEFORMAT='export %U s of processor, %R s'
time "${CARGO_TARGET_DIR:-target}/release/plimsoll" export "$file" --to html --output "$cache/page.html"
exec "$python" bench/page.py "$cache/page.html"
