#!/usr/bin/env bash
# Opens pages of recordings in Chromium and checks what they show: `bash scripts/page_test.sh [PYTEST ARGUMENT...]`.
#
# Needs Chromium (installed from the distribution where this runs as root and it is absent) and Python; Playwright and
# pytest go into an environment beside the checkout's other caches, which is kept. PLIMSOLL and PLIMSOLL_XTASK name built
# programs; without them they are built.
# PLIMSOLL_PAGE_SHOTS names a folder for pictures of the pages. Where Chromium is absent and cannot be installed, it
# says so and passes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/page_environment.sh

if ! prepare_page_environment; then
    echo "test result: skipped. 0 passed; $missing"
    exit 0
fi
if [ -z "${PLIMSOLL:-}" ] || [ -z "${PLIMSOLL_XTASK:-}" ]; then
    # The whole workspace, as scripts/test.sh builds it: other features would build everything anew.
    cargo build --quiet --workspace --locked
    built=$(realpath "${CARGO_TARGET_DIR:-target}")/debug
    PLIMSOLL=$built/plimsoll PLIMSOLL_XTASK=$built/xtask
fi
export PLIMSOLL PLIMSOLL_XTASK
exec "$python" -m pytest -q -p no:cacheprovider tests/page "$@"
