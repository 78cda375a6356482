# shellcheck shell=bash
# gVisor (runsc) as a second runtime of the engine, for the tests: boxes with a kernel of their own.

ENGINE_CONFIG=${SANDHOG_ENGINE_CONFIG:-/etc/docker/daemon.json}
ENGINE_PID=${SANDHOG_ENGINE_PID:-/var/run/docker.pid}
GVISOR_ARGS=(--platform=ptrace --network=none)

# has_gvisor: true when the engine knows the runtime.
# shellcheck disable=SC2016 # the engine expands it
has_gvisor() {
    timeout 20 docker info --format '{{range $name, $_ := .Runtimes}}{{println $name}}{{end}}' 2>/dev/null | grep -qx runsc
}

# ensure_gvisor: installs and registers it where this user may and the engine is this machine's own; never fails, for
# nothing but the tests of gVisor needs it.
ensure_gvisor() {
    if has_gvisor; then return 0; fi
    if ! may_install || ! engine_is_local; then
        say "gVisor is left out: its tests need root on the engine's own machine"
        return 0
    fi
    if ! command -v runsc >/dev/null; then
        known_package runsc || refresh_package_lists || true
        if ! known_package runsc || ! install_packages runsc; then
            say "gVisor is left out: there is no package runsc here"
            return 0
        fi
    fi
    register_gvisor "${GVISOR_ARGS[@]}" || {
        say "gVisor is left out: the engine did not take the runtime"
        return 0
    }
    # Where gVisor cannot use the control groups, boxes of it have weaker limits, which sandhog then names.
    gvisor_runs || register_gvisor "${GVISOR_ARGS[@]}" --ignore-cgroups || true
}

# engine_is_local: true when the engine that answers is a process of this machine that root may signal.
engine_is_local() {
    case ${DOCKER_HOST:-unix:///var/run/docker.sock} in
    unix:///var/run/docker.sock | unix:///run/docker.sock) holds_pid dockerd "$ENGINE_PID" ;;
    *) false ;;
    esac
}

# gvisor_runs: true when a container with limits comes up.
gvisor_runs() {
    timeout 60 docker run --rm --runtime runsc --network none --memory 256m --cpus 1 --pids-limit 1024 "$BOX_IMAGE" true \
        >/dev/null 2>&1
}

# register_gvisor ARGUMENT …: names the runtime in the engine's configuration, beside what is there, and has the engine
# read it again, which stops nothing.
register_gvisor() {
    local path
    path=$(command -v runsc)
    mkdir -p "$(dirname "$ENGINE_CONFIG")"
    python3 - "$ENGINE_CONFIG" "$path" "$@" <<'PYTHON' || return 1
import json, os, sys

config, path, *arguments = sys.argv[1:]
settings = {}
if os.path.exists(config):
    with open(config, encoding="utf-8") as file:
        settings = json.loads(file.read() or "{}")
settings.setdefault("runtimes", {})["runsc"] = {"path": path, "runtimeArgs": arguments}
draft = config + ".sandhog"
with open(draft, "w", encoding="utf-8") as file:
    json.dump(settings, file, indent=2)
    file.write("\n")
os.replace(draft, config)
PYTHON
    kill -HUP "$(cat "$ENGINE_PID")" || return 1
    local tries
    for tries in {1..50}; do
        if has_gvisor; then
            say "gVisor registered as the engine's runtime runsc ($*)"
            return 0
        fi
        sleep 0.1
    done
    : "$tries"
    return 1
}
