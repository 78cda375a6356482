#!/usr/bin/env bash
# Runs docker compose for a stack, with secrets and images made where they are missing.
#
#   bash deploy/compose.sh up -d                    redis, coordinator, workers on this host
#   bash deploy/compose.sh --tls --monitoring up -d with TLS for further hosts, with Prometheus and Grafana
#   bash deploy/compose.sh --gvisor up -d           boxes under gVisor
#   bash deploy/compose.sh --worker up -d           a further host: workers only; takes --gvisor too
#   bash deploy/compose.sh --overlay FILE up -d     with a compose file of your own on top
#   bash deploy/compose.sh build                    makes the images anew
#   bash deploy/compose.sh upgrade                  new images, one service after the other; boxes and sessions go on
#   bash deploy/compose.sh down [--volumes]         ends sessions' boxes, then everything
#   bash deploy/compose.sh token                    prints the API token
#
# Every other word goes to docker compose as it is. Settings: SANDHOG_STATE_DIR (the volume, same path everywhere),
# SANDHOG_WORKERS, SANDHOG_PLACES, SANDHOG_PORT, OPENAI_BASE_URL, SANDHOG_MODEL; the key of the endpoint is read from
# OPENAI_API_KEY when the secrets are made. More settings: deploy/coordinator.env and deploy/worker.env.
set -euo pipefail

DEPLOY=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(dirname "$DEPLOY")
SAY_AS=compose
# shellcheck source-path=SCRIPTDIR
source "$DEPLOY/lib/say.sh"
# shellcheck source-path=SCRIPTDIR
source "$DEPLOY/lib/packages.sh"
# shellcheck source-path=SCRIPTDIR
source "$DEPLOY/lib/image.sh"
# shellcheck source-path=SCRIPTDIR
source "$DEPLOY/lib/stack.sh"

export SANDHOG_STATE_DIR=${SANDHOG_STATE_DIR:-/var/lib/sandhog}
export SANDHOG_SECRETS=${SANDHOG_SECRETS:-$DEPLOY/secrets}

main() {
    local files=() base=compose.yaml overlays=() own=() with_tls='' with_gvisor='' with_monitoring='' without_grafana=''
    while [ $# -gt 0 ]; do
        case $1 in
        --tls) overlays+=(compose.tls.yaml) with_tls=1 ;;
        --gvisor) overlays+=(compose.gvisor.worker.yaml) with_gvisor=1 ;;
        --monitoring) with_monitoring=1 ;;
        --worker) base=compose.worker.yaml ;;
        --overlay)
            shift
            own+=(--file "$1")
            ;;
        -h | --help)
            sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
            return
            ;;
        *) break ;;
        esac
        shift
    done
    [ $# -gt 0 ] || die "no command given" "For example:  bash deploy/compose.sh up -d" "All of them: bash deploy/compose.sh --help"
    if [ "$base" = compose.yaml ]; then
        [ -z "$with_gvisor" ] || overlays+=(compose.gvisor.yaml)
        if [ -n "$with_tls" ]; then export SANDHOG_PROMETHEUS_FILE=prometheus.tls.yaml; fi
    elif [ -n "$with_tls$with_monitoring" ]; then
        die "--worker takes neither --tls nor --monitoring: both are of the first host" \
            "docs/operate.md says how its Prometheus watches further hosts"
    fi
    if [ -n "$with_monitoring" ]; then
        case $1 in up | run | create | upgrade) ensure_monitoring ;; esac
        overlays+=(compose.monitoring.yaml)
        [ -n "$without_grafana" ] || overlays+=(compose.grafana.yaml)
    fi
    local name
    for name in "$base" "${overlays[@]}"; do files+=(--file "$DEPLOY/$name"); done
    files+=("${own[@]}")
    ensure_secrets "$base" "$with_tls"
    case $1 in
    token) cat "$SANDHOG_SECRETS/api_token" && echo && return ;;
    build) build_images ;;
    up | run | create)
        ensure_images
        ensure_volume
        compose "${files[@]}" "$@"
        ;;
    upgrade)
        build_images
        # Workers first: an old coordinator speaks with new workers; each hands its boxes to its next life.
        compose "${files[@]}" up --detach --no-build --no-deps --wait worker
        if [ "$base" = compose.yaml ]; then compose "${files[@]}" up --detach --no-build --wait; fi
        ;;
    down)
        # A worker that is asked to end, not to hand over, ends its boxes.
        compose "${files[@]}" kill --signal SIGTERM worker >/dev/null 2>&1 || true
        await_end_of_workers "${files[@]}"
        compose "${files[@]}" "$@"
        ;;
    *) compose "${files[@]}" "$@" ;;
    esac
}

main "$@"
