#!/usr/bin/env bash
# Passes every check of the project and installs what they need: `bash scripts/test.sh`.
#
# Needs a Rust toolchain and Python; everything else comes from rustup, the registries of crates and Python packages,
# and, for the browser, the distribution's packages. The first failing step ends the
# run with its exit code. CARGO_TARGET_DIR is respected.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}" RUST_BACKTRACE="${RUST_BACKTRACE:-1}"
# Incremental builds cost disk and time where everything is built once.
export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"

# Crates that must stay pure: they build where there is no file system, clock, environment or network.
pure=(units catalog formats model timeline estimate explain engine)
wasm=wasm32-unknown-unknown

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
started=$SECONDS
closing=()

# step NAME COMMAND...: runs a command, shows its output, keeps its closing lines for the end.
step() {
    local name=$1 begin=$SECONDS code=0
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    "$@" 2>&1 | tee "$logs/log" || code=$?
    if [ "$code" -ne 0 ]; then
        printf '\nFAILED: %s (exit code %s)\n' "$name" "$code" >&2
        exit "$code"
    fi
    closing+=("$(printf 'ok %4ss  %s' "$((SECONDS - begin))" "$name")")
    while IFS= read -r line; do
        closing+=("            $line")
    done < <(grep -E '^ *(Summary \[|test result: |[0-9]+ (passed|failed).* in [0-9.]+s)' "$logs/log" | sum_results)
}

# The many "test result" lines of `cargo test` as one; lines of other runners as they are.
sum_results() {
    awk '/test result: (ok|FAILED)/ { for (i = 1; i < NF; i++) { if ($(i+1) ~ /^passed/) p += $i; if ($(i+1) ~ /^failed/) f += $i;
             if ($(i+1) ~ /^ignored/) g += $i }; n++; next }
         { sub(/^ +/, ""); print }
         END { if (n) printf "test result: ok. %d passed; %d failed; %d ignored in %d binaries\n", p, f, g, n }'
}

# What rustup can install and a bare toolchain may lack.
install() {
    if command -v rustup >/dev/null; then
        cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
        cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
        rustup target add "$wasm"
    fi
    cargo --version
    rustc --version
}

unit_tests() {
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --workspace --locked --no-fail-fast
    else
        cargo test --workspace --locked --no-fail-fast --lib --bins --tests
    fi
}

pure_crates() {
    if ! [ -d "$(rustc --print sysroot)/lib/rustlib/$wasm" ]; then
        echo "the target $wasm is not installed, and there is no rustup to install it" >&2
        return 1
    fi
    local crate packages=()
    for crate in "${pure[@]}"; do
        packages+=(-p "plimsoll-$crate")
    done
    cargo check --locked --target "$wasm" "${packages[@]}"
}

# Programs as the tests built them: the whole workspace is built at a time, so that features and thus artefacts are shared.
built() {
    "${CARGO_TARGET_DIR:-target}/debug/$1" "${@:2}"
}

# The main job from the command line: the answer, its exit code, and the errors' exit codes.
smoke() {
    local out=0
    built plimsoll estimate meta-llama/Llama-3.1-8B --train --gpu a100-80g --batch 4 --seq 4096 --checkpoint full || out=$?
    [ "$out" -le 1 ] || { echo "exit code $out; 0 (fits) or 1 (does not fit) was expected" >&2; return 1; }
    for expected in "0 estimate gpt2 --train --gpu h100-80g" "1 estimate llama-3.1-70b --train --gpu rtx-4090 --no-changes" \
        "2 estimate gpt2 --no-such-option" "3 estimate no-such-model --gpu h100-80g" "5 estimate gpt2 --gpu no-such-gpu"; do
        out=0
        # shellcheck disable=SC2086 # words are arguments here
        built plimsoll ${expected#* } >/dev/null 2>&1 || out=$?
        [ "$out" -eq "${expected%% *}" ] || { echo "plimsoll ${expected#* }: exit code $out, not ${expected%% *}" >&2; return 1; }
    done
    echo "exit codes as documented"
}

step "toolchain" install
step "format" cargo fmt --all --check
step "lints" cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
step "pure crates build for $wasm" pure_crates
step "tests (generated references, documentation and links included)" unit_tests
step "documentation tests" cargo test --workspace --doc --locked
step "programs" cargo build --workspace --locked
step "command line" smoke
step "pages of recordings in a browser" bash scripts/page_test.sh
step "Parquet" cargo test --locked -p plimsoll-explain --features parquet --test exports
step "Parquet on the command line" cargo check --locked -p plimsoll-cli --features parquet
step "validation bars" built xtask validate

printf '\n'
printf '%s\n' "${closing[@]}"
printf 'all checks passed in %s s\n' "$((SECONDS - started))"
