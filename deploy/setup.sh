#!/usr/bin/env bash
# Makes this checkout ready: .venv/bin/sandhog, a Docker engine that answers, the default box image.
# Installs only what is missing; with nothing left to do it ends within a second.
#
#   bash deploy/setup.sh           to run sandhog
#   bash deploy/setup.sh --dev     with the tools of deploy/test.sh too (as does SANDHOG_DEV=1)
set -euo pipefail

DEPLOY=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(dirname "$DEPLOY")
# shellcheck source-path=SCRIPTDIR
source "$DEPLOY/lib/say.sh"
# shellcheck source-path=SCRIPTDIR
source "$DEPLOY/lib/packages.sh"
# shellcheck source-path=SCRIPTDIR
source "$DEPLOY/lib/python.sh"
# shellcheck source-path=SCRIPTDIR
source "$DEPLOY/lib/engine.sh"
# shellcheck source-path=SCRIPTDIR
source "$DEPLOY/lib/image.sh"
# shellcheck source-path=SCRIPTDIR
source "$DEPLOY/lib/gvisor.sh"

main() {
    local kind=run
    [ "${SANDHOG_DEV:-}" != 1 ] || kind=dev
    case ${1:-} in
    '') ;;
    --dev) kind=dev ;;
    -h | --help)
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        return
        ;;
    *) die "unknown argument '$1'" "Allowed: --dev, --help" ;;
    esac
    [ "$(uname -s)" = Linux ] || die "sandhog's boxes need Linux" "Run this on a Linux machine, a virtual one will do"
    # Two set-ups of one checkout wait for each other; what they start must not keep this lock (descriptor 9).
    exec 9<"${BASH_SOURCE[0]}"
    if command -v flock >/dev/null; then flock 9; fi
    # The tests hold patches against what these two make of them.
    if [ "$kind" = dev ]; then
        ensure_commands git patch busybox=busybox-static
        # The page's tests say themselves what is missing, and fail where all servers are required.
        if may_install; then (ensure_commands chromium) || say "without chromium the page's tests are skipped"; fi
    fi
    ensure_environment "$kind"
    # One question answers for both.
    if ! image_is_current; then
        ensure_engine
        ensure_image
    fi
    if [ "$kind" = dev ]; then ensure_gvisor; fi
    say "ready"
}

main "$@"
