#!/usr/bin/env bash
# A cold start for Llama-3.1-405B training on 128 GPUs: wall time, largest resident size, instructions; and the same
# with the search for nearest changes, which estimates some two dozen other requests. The bars, 30 ms and 40 MiB, are
# held against the estimate itself. See bench/README.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo build --release --locked --quiet -p plimsoll-cli
plimsoll=${CARGO_TARGET_DIR:-target}/release/plimsoll
question=(estimate meta-llama/Llama-3.1-405B --train --gpu 'h100-80g*128' --tp 8 --pp 16 --sp --stack megatron
    --precision bf16-megatron --zero distributed-optimizer --batch 1 --seq 8192 --accumulate 16 --checkpoint full)

# timed RUNS OPTIONS...: microseconds of each run, sorted.
timed() {
    local begin end runs=$1
    shift
    for _ in $(seq "$runs"); do
        begin=${EPOCHREALTIME/[.,]/}
        "$plimsoll" "${question[@]}" "$@" >/dev/null || [ $? -eq 1 ]
        end=${EPOCHREALTIME/[.,]/}
        echo $((end - begin))
    done | sort -n
}

answer=$("$plimsoll" "${question[@]}" || [ $? -eq 1 ])
head -4 <<<"$answer"
searched=$(timed 21)
printf '\n%-22s %8d us least, %d us median of 21\n' "with nearest changes" "$(head -1 <<<"$searched")" "$(sed -n 11p <<<"$searched")"
question+=(--no-changes)
runs=$(timed 101)
least=$(head -1 <<<"$runs")
median=$(sed -n 51p <<<"$runs")
printf '%-22s %8d us least, %d us median of 101\n' "wall time" "$least" "$median"

resident=""
if [ -x /usr/bin/time ]; then
    resident=$({ /usr/bin/time -f '%M' "$plimsoll" "${question[@]}" >/dev/null || [ $? -eq 1 ]; } 2>&1 | tail -1)
    printf '%-22s %8d KiB\n' "largest resident size" "$resident"
fi
if command -v valgrind >/dev/null; then
    log=$(mktemp)
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$plimsoll" "${question[@]}" >/dev/null 2>"$log" || [ $? -eq 1 ]
    printf '%-22s %8s\n' "instructions" "$(sed -n 's/.*Collected : //p' "$log")"
    rm -f "$log"
fi
[ "$median" -le 30000 ] || { echo "the bar is 30 ms" >&2; exit 1; }
[ "${resident:-0}" -le 40960 ] || { echo "the bar is 40 MiB" >&2; exit 1; }
