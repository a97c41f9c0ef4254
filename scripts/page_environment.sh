# What a browser test needs; sourced by scripts/page_test.sh and bench/page.sh. Sets `python` and exports CHROMIUM, or
# fails with the reason in `missing`, where there is no Chromium and no way to install it.

prepare_page_environment() {
    local at=${XDG_CACHE_HOME:-$HOME/.cache}/plimsoll/test-env name
    for name in chromium chromium-browser; do
        CHROMIUM=${CHROMIUM:-$(command -v "$name" || true)}
    done
    if [ -z "$CHROMIUM" ]; then
        if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
            missing="there is no Chromium here, and installing it takes apt-get and root"
            return 1
        fi
        # Run in conditions, where a failure would not end the script by itself.
        apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends chromium || exit 1
        CHROMIUM=$(command -v chromium) || exit 1
    fi
    export CHROMIUM
    python=$at/bin/python
    if ! "$python" -c 'import playwright, pytest' 2>/dev/null; then
        mkdir -p "$at" && python3 -m venv --clear "$at" && "$python" -m pip install --quiet playwright pytest || exit 1
    fi
}
