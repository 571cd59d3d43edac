#!/bin/sh
# Installs Chromium for the tests that open a report in a real browser (tests/reporting/test_browser.py).
set -eu

if command -v chromium >/dev/null 2>&1; then
    echo "chromium is there: $(command -v chromium)"
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "this script knows Debian and Ubuntu only; install Chromium as your system does and set CHROMIUM to its path" >&2
    exit 1
fi
SUDO=""
if [ "$(id -u)" != 0 ]; then SUDO="sudo"; fi
$SUDO apt-get update
$SUDO apt-get install -y --no-install-recommends chromium
chromium --version
