#!/bin/sh
# The browser tests drive a real Chromium. Installed here when it is missing and Debian's packages
# can be had; elsewhere one sentence says what to install.
set -eu
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "The browser tests need chromium and chromedriver on the PATH: install them." >&2
    exit 1
fi
sudo=""
[ "$(id -u)" -eq 0 ] || sudo="sudo"
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null
