#!/usr/bin/env bash
# Times `accelerate estimate-memory` and `plimsoll estimate` on one configuration in one run, and prints the ratio.
# Fails if Plimsoll is less than 100 times faster. See bench/README.md for the environment variables.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name=meta-llama/Llama-3.1-8B
folder=bench/Llama-3.1-8B
cache=${PLIMSOLL_BENCH_CACHE:-${CARGO_TARGET_DIR:-target}/bench}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)

python=${PLIMSOLL_BENCH_PYTHON:-$cache/venv/bin/python}
if ! [ -x "$python" ]; then
    python3 -m venv "$cache/venv"
    "$python" -m pip install --quiet accelerate transformers torch
fi
cargo build --release --locked --quiet -p plimsoll-cli
plimsoll=${CARGO_TARGET_DIR:-target}/release/plimsoll

port_file=$(mktemp -u)
python3 bench/hub.py "$name" "$folder/config.json" "$port_file" &
hub=$!
trap 'kill "$hub" 2>/dev/null; rm -f "$port_file"' EXIT
for _ in $(seq 100); do
    [ -e "$port_file" ] && break
    sleep 0.05
done
export HF_ENDPOINT="http://127.0.0.1:$(cat "$port_file")" HF_HOME="$cache/hf" NO_PROXY=127.0.0.1 no_proxy=127.0.0.1
export HF_HUB_DISABLE_PROGRESS_BARS=1 HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false

# timed RUNS COMMAND...: microseconds of each run, sorted.
timed() {
    local runs=$1 begin end
    shift
    for _ in $(seq "$runs"); do
        begin=${EPOCHREALTIME/[.,]/}
        "$@" >"$cache/out" 2>&1 || [ $? -eq 1 ] || { cat "$cache/out" >&2; return 1; }
        end=${EPOCHREALTIME/[.,]/}
        echo $((end - begin))
    done | sort -n
}

accelerate() {
    "$python" -m accelerate.commands.accelerate_cli estimate-memory "$name" --library_name transformers --dtypes float32
}

ours() {
    "$plimsoll" estimate "$folder/" --train --gpu h200-141g --batch 1 --seq 2048 --checkpoint full "$@"
}

echo "accelerate estimate-memory $name:"
theirs=$(timed 4 accelerate | head -1)
grep -E 'float32|dtype' "$cache/out"
echo "plimsoll estimate $folder/:"
mine=$(timed 41 ours --no-changes | sed -n 21p)
searched=$(timed 11 ours | sed -n 6p)
head -3 "$cache/out"

ratio=$((theirs / (mine > 0 ? mine : 1)))
printf '\n%-28s %10d us  (best of 4)\n' "accelerate estimate-memory" "$theirs"
printf '%-28s %10d us  (median of 41)\n' "plimsoll estimate" "$mine"
printf '%-28s %10d us  (median of 11)\n' "  and the nearest changes" "$searched"
printf '%-28s %10d\n' "times faster" "$ratio"
[ "$ratio" -ge 100 ] || { echo "the bar is 100" >&2; exit 1; }
