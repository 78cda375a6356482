#!/usr/bin/env bash
# Sets everything up and runs one session.
#
#   bash deploy/quickstart.sh              the demo: a scripted model mends a small project
#   bash deploy/quickstart.sh PROMPT …     a real model works on the current directory; needs OPENAI_API_KEY
#                                          or OPENAI_BASE_URL (a server of your own), and SANDHOG_MODEL if
#                                          the default model is not the one you want
set -euo pipefail

DEPLOY=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SANDHOG=$(dirname "$DEPLOY")/.venv/bin/sandhog
# shellcheck source-path=SCRIPTDIR
source "$DEPLOY/lib/say.sh"

case ${1:-} in
-h | --help)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    exit
    ;;
esac

bash "$DEPLOY/setup.sh"
if [ $# -eq 0 ]; then exec "$SANDHOG" demo; fi
if [ -z "${OPENAI_API_KEY:-}${OPENAI_BASE_URL:-}" ]; then
    say "no OPENAI_API_KEY or OPENAI_BASE_URL is set, so the demo runs instead of your prompt"
    exec "$SANDHOG" demo
fi
exec "$SANDHOG" run -- "$*"
