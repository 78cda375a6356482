# shellcheck shell=bash
# Packages of the distribution, through the apt this machine is configured with.

# may_install: true where this user can install packages (root on Debian, Ubuntu or a relative).
may_install() { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; }

# apt_get ARGUMENT …: apt-get that never asks and waits for another apt to finish.
apt_get() { DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 "$@"; }

refresh_package_lists() {
    say "refreshing the package lists"
    quietly "apt-get update" apt_get update
}

# known_package NAME: true when the package lists offer it.
known_package() { apt-cache show --no-all-versions "$1" >/dev/null 2>&1; }

# install_packages NAME …: installs without recommends; the lists are refreshed only when the first try fails.
install_packages() {
    say "installing $*"
    apt_get install --no-install-recommends "$@" >/dev/null 2>&1 </dev/null && return
    refresh_package_lists || true
    quietly "apt-get install $*" apt_get install --no-install-recommends "$@"
}

# ensure_commands NAME[=PACKAGE] …: installs those missing, each from the package of the same name unless one is given.
ensure_commands() {
    local wanted missing=()
    for wanted in "$@"; do command -v "${wanted%%=*}" >/dev/null || missing+=("${wanted#*=}"); done
    [ ${#missing[@]} -gt 0 ] || return 0
    may_install || die "missing: ${missing[*]}" "Install them; on Debian or Ubuntu:  sudo apt-get install ${missing[*]}"
    install_packages "${missing[@]}" || die "apt-get could not install ${missing[*]}"
}
