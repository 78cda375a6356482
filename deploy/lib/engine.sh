# shellcheck shell=bash
# A Docker engine that answers: the one that is there, else the distribution's, started here.

DOCKERD_LOG=${SANDHOG_DOCKERD_LOG:-/var/log/sandhog-dockerd.log}
ENGINE_WAIT_S=60

# engine_answers: true when the docker command reaches an engine.
engine_answers() { timeout 20 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# ensure_engine: an engine that answers is used as it is, wherever DOCKER_HOST or the context point to.
ensure_engine() {
    engine_answers && return
    explain_foreign_engine
    may_install || die "no Docker engine answers" \
        "Install one for your system:            https://docs.docker.com/engine/install/" \
        "start it:                               sudo systemctl start docker" \
        "let your user reach it:                 sudo usermod -aG docker \"\$USER\"   (then log in again)" \
        "see that this answers and run it again: docker version"
    if ! command -v docker >/dev/null || ! command -v dockerd >/dev/null; then
        install_engine
        # The package may have started it.
        if wait_for_engine 3; then return; fi
    fi
    start_engine
}

# explain_foreign_engine: ends with steps where an engine is set or running that only the user can mend.
explain_foreign_engine() {
    command -v docker >/dev/null || return 0
    local answer
    answer=$(timeout 20 docker version 2>&1 >/dev/null) || true
    case $answer in
    *"permission denied"*)
        die "the Docker engine is there, but $(id -un) may not use it" \
            "Join its group:  sudo usermod -aG docker \"\$USER\"" \
            "log in again (or run 'newgrp docker') and run this again"
        ;;
    esac
    if [ -n "${DOCKER_HOST:-}" ] && [ "$DOCKER_HOST" != unix:///var/run/docker.sock ]; then
        die "the Docker engine at DOCKER_HOST=$DOCKER_HOST does not answer" \
            "Start that engine, or unset DOCKER_HOST to use one on this machine, and run this again"
    fi
}

install_engine() {
    local packages=(docker.io iptables)
    apt-cache show docker.io >/dev/null 2>&1 || refresh_package_lists || true
    # Newer releases keep the command in a package of its own.
    if known_package docker-cli; then packages+=(docker-cli); fi
    install_packages "${packages[@]}" || die "the Docker engine could not be installed" \
        "Install one for your system and run this again:  https://docs.docker.com/engine/install/"
}

# wait_for_engine SECONDS [PID]: fails when the time is over, or as soon as the process is gone.
wait_for_engine() {
    local end=$((SECONDS + $1))
    while ! engine_answers; do
        [ "$SECONDS" -lt "$end" ] || return 1
        [ -z "${2:-}" ] || kill -0 "$2" 2>/dev/null || return 1
        sleep 0.3
    done
}

# lives PID: true when there is such a process and it has not ended; one that ended stays listed until it is waited for.
lives() { grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status"; }

# is_running NAME: true when a process of this name lives.
is_running() {
    local found
    while read -r found; do
        found=${found#/proc/}
        if lives "${found%/comm}"; then return 0; fi
    done < <(grep -lsx "$1" /proc/[0-9]*/comm)
    return 1
}

start_engine() {
    say "starting the Docker engine"
    if [ -d /run/systemd/system ]; then
        quietly "systemctl start docker" systemctl start docker && wait_for_engine "$ENGINE_WAIT_S" && return
        die "systemd could not start the Docker engine" "See why:  journalctl -u docker"
    fi
    if is_running dockerd; then
        wait_for_engine "$ENGINE_WAIT_S" && return
        die "a dockerd is running but does not answer" "See its log, end it, and run this again"
    fi
    clear_stale_files
    mount_cgroups
    launch_dockerd && return
    # Boxes have no network, so an engine that cannot set one up serves too.
    say "once more without a bridge network, which boxes do not need"
    clear_stale_files
    launch_dockerd --bridge=none --iptables=false && return
    tail -n 20 "$DOCKERD_LOG" | sed 's/^/    /' >&2
    die "dockerd did not come up" "See $DOCKERD_LOG"
}

# launch_dockerd OPTION …: starts it apart from this shell, its terminal and its open files.
launch_dockerd() {
    : >>"$DOCKERD_LOG"
    (cd / && exec setsid nohup dockerd "$@" >>"$DOCKERD_LOG" 2>&1 </dev/null 9>&-) &
    local pid=$!
    disown "$pid"
    wait_for_engine "$ENGINE_WAIT_S" "$pid" && return
    kill "$pid" 2>/dev/null || true
    return 1
}

# clear_stale_files: what a dead engine left behind makes a new one wait for it: a pid file whose number was given
# away since, a socket nobody listens on.
clear_stale_files() {
    local run=/var/run/docker
    if ! holds_pid dockerd "$run.pid"; then rm -f "$run.pid"; fi
    if ! holds_pid containerd "$run/containerd/containerd.pid"; then rm -f "$run"/containerd/containerd.{pid,sock,sock.ttrpc}; fi
    if ! is_running containerd; then rm -f /run/containerd/containerd.sock{,.ttrpc}; fi
}

# holds_pid NAME FILE: true when a process of this name has the number in the file.
holds_pid() {
    local pid
    pid=$(cat "$2" 2>/dev/null) && [ -n "$pid" ] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$1" ] && lives "$pid"
}

# mount_cgroups: a machine without an init system may not have done it.
mount_cgroups() {
    if [ -e /sys/fs/cgroup/cgroup.controllers ] || [ -d /sys/fs/cgroup/memory ]; then return; fi
    mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null || true
}
