# shellcheck shell=bash
# Progress and failure of the deploy scripts: lines on stderr with the seconds since the start.

# say TEXT: one progress line.
say() { printf '%s: [%3d s] %s\n' "${SAY_AS:-setup}" "$SECONDS" "$*" >&2; }

# die TEXT [STEP …]: says what failed, what to do step by step, and ends the script.
die() {
    say "$1"
    shift
    local step
    for step in "$@"; do printf '    %s\n' "$step" >&2; done
    exit 1
}

# quietly TEXT COMMAND …: runs the command and shows its output only when it fails; returns its status.
quietly() {
    local what=$1 output status=0
    shift
    output=$("$@" 2>&1 </dev/null) || status=$?
    if [ "$status" -ne 0 ]; then
        say "$what failed (exit $status):"
        tail -n 30 <<<"$output" | sed 's/^/    /' >&2
    fi
    return "$status"
}
