# shellcheck shell=bash
# The virtual environment at the repository's root.

# Which Pythons are tried, in this order; SANDHOG_PYTHON names the one to take.
PYTHONS=${SANDHOG_PYTHON:-python3.13 python3.12 python3.11 python3 /usr/bin/python3}

# runs_python COMMAND: true for a Python of 3.11 or later; a shim without a version behind it does not run.
runs_python() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

# makes_environments COMMAND: true when its standard library can make a virtual environment with pip.
makes_environments() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

# is_optimised COMMAND: true for a distribution's Python, and for one compiled with its optimisations. One that a version
# manager compiled with its defaults is neither, and takes a fifth more of the processor for each call.
is_optimised() {
    "$1" -c 'import os, sys, sysconfig
is_system = os.path.realpath(sys.executable).startswith("/usr/bin/")
sys.exit(not is_system and "--enable-optimizations" not in (sysconfig.get_config_var("CONFIG_ARGS") or ""))' \
        >/dev/null 2>&1
}

# find_python: prints the first that is optimised and can make environments, else the first that can make them, else
# the first that runs; fails when none runs.
find_python() {
    local name slow= bare=
    for name in $PYTHONS; do
        runs_python "$name" || continue
        if ! makes_environments "$name"; then
            bare=${bare:-$name}
        elif is_optimised "$name"; then
            printf '%s\n' "$name"
            return
        else
            slow=${slow:-$name}
        fi
    done
    [ -n "$slow$bare" ] && printf '%s\n' "${slow:-$bare}"
}

# usable_python: prints a Python that can make environments, installing what is missing where it may.
usable_python() {
    local python
    python=$(find_python) || python=
    if [ -z "$python" ] || ! makes_environments "$python"; then
        may_install || die "no Python 3.11 or later that can make a virtual environment" \
            "Install one and run this again; on Debian or Ubuntu:  sudo apt-get install python3 python3-venv"
        install_packages python3 python3-venv || die "Python could not be installed"
        python=$(find_python) || die "this distribution's Python is older than 3.11" \
            "Install Python 3.11 or later so that 'python3.11' or 'python3' runs it, and run this again"
        makes_environments "$python" || die "$python cannot make a virtual environment" \
            "Install its venv and ensurepip modules and run this again"
    fi
    printf '%s\n' "$python"
}

# environment_stamp KIND: what the environment was made from; it holds the place too, since its scripts do.
environment_stamp() {
    printf '%s %s %s\n' "$1" "$(cat "$ROOT/pyproject.toml" "$DEPLOY/constraints.txt" | sha256sum | cut -c1-16)" "$ROOT"
}

# environment_is_current KIND: an environment for development serves for running too.
environment_is_current() {
    local found
    [ -x "$ROOT/.venv/bin/sandhog" ] && found=$(cat "$ROOT/.venv/sandhog-stamp" 2>/dev/null) || return 1
    [ "$found" = "$(environment_stamp "$1")" ] || [ "$found" = "$(environment_stamp dev)" ] || return 1
    "$ROOT/.venv/bin/python" -c '' 2>/dev/null
}

# ensure_environment KIND: KIND is "run" or "dev".
ensure_environment() {
    environment_is_current "$1" && return
    local python extra=
    if ! runs_python "$ROOT/.venv/bin/python" || ! "$ROOT/.venv/bin/python" -m pip --version >/dev/null 2>&1; then
        python=$(usable_python)
        say "making .venv with $("$python" -V)"
        quietly "python -m venv" "$python" -m venv --clear "$ROOT/.venv" || die "no virtual environment at $ROOT/.venv"
    fi
    [ "$1" = run ] || extra='[dev]'
    rm -f "$ROOT/.venv/sandhog-stamp"
    say "installing the packages"
    quietly "pip install" "$ROOT/.venv/bin/python" -m pip install --disable-pip-version-check \
        --constraint "$DEPLOY/constraints.txt" --editable "$ROOT$extra" ||
        die "the packages could not be installed" "Check the index pip is configured with:  pip config list"
    environment_stamp "$1" >"$ROOT/.venv/sandhog-stamp"
}
