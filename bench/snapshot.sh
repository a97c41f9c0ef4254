#!/usr/bin/env bash
# A memory snapshot of 1 GB and 5 million events, opened and summarised, and Python's pickle.load of the same file
# beside it in one run: time, processor time, largest resident size. See bench/README.md.
#
# usage: bench/snapshot.sh [shared|inline]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

frames=${1:-inline}
case $frames in
inline) depth=11 ;; # 35 million frames, each stack spelled out
shared) depth=66 ;; # each frame is one object, as torch makes them; 208 million references
*) echo "usage: bench/snapshot.sh [shared|inline]" >&2; exit 2 ;;
esac
cache=${PLIMSOLL_BENCH_CACHE:-target/bench}
file=$cache/snapshot-$frames.pickle
mkdir -p "$cache"
[ -f "$file" ] || cargo xtask synthesize-snapshot --events 5000000 --depth "$depth" --frames "$frames" "$file"
cargo build --release --locked --quiet -p plimsoll-formats --example snapshot
"${PLIMSOLL_BENCH_PYTHON:-python3}" bench/snapshot.py "$file" "${CARGO_TARGET_DIR:-target}/release/examples/snapshot"
