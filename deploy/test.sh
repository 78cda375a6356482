#!/usr/bin/env bash
# Sets everything up, then runs all checks and tests; pytest's closing line comes last.
# Ends with 0 only when every step passed. Arguments go to pytest. With SANDHOG_TEST_LONG=1 the scenarios that take minutes
# each are run too. Kept afterwards in build/: results for CI as junit*.xml, screenshots of the page's tests.
set -euo pipefail

DEPLOY=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SAY_AS='test'
# shellcheck source-path=SCRIPTDIR
source "$DEPLOY/lib/say.sh"

failed=()

# step NAME COMMAND …: runs it from the repository's root and remembers a failure.
step() {
    local name=$1
    shift
    say "$name"
    "$@" || failed+=("$name")
}

# run_tests PYTHON ARGUMENT …: files beside each other, for many tests only wait. Real engines, signals and leases on a
# busy machine can fail a test once: a few that fail are run once more, by themselves, and named as such; a test that is
# broken fails again.
run_tests() {
    local python=$1 code=0 count
    shift
    # In the order of their names: few tests of whole sessions take longer than many small ones, and must not come last.
    "$python" -m pytest -q --numprocesses "${SANDHOG_TEST_PROCESSES:-4}" --dist loadfile --no-loadscope-reorder \
        --durations=20 --junit-xml build/junit.xml "$@" || code=$?
    [ "$code" -eq 1 ] || return "$code"
    count=$("$python" -c 'import json; print(len(json.load(open(".pytest_cache/v/cache/lastfailed"))))') || return 1
    [ "$count" -le 5 ] || return 1
    say "$count failed and are run once more; if they pass now, they are unsteady and named above"
    "$python" -m pytest -q -ra --last-failed --last-failed-no-failures none --junit-xml build/junit-again.xml "$@"
}

main() {
    bash "$DEPLOY/setup.sh" --dev
    cd "$DEPLOY/.."
    # The set-up leaves every server in place, so one that is missing is a failure here, not a skip.
    export SANDHOG_REQUIRE_SERVERS=1
    local bin=.venv/bin
    step format "$bin/ruff" format --check --quiet .
    step lint "$bin/ruff" check --quiet .
    step types "$bin/mypy"
    step imports env PYTHONPATH=. "$bin/lint-imports" --no-logo
    # pytest's closing line is the last of all, so the other failures are named before it.
    if [ ${#failed[@]} -gt 0 ]; then say "FAILED so far: ${failed[*]}"; fi
    # Scenarios of minutes: a stack of containers, chaos, lost nodes. They are for a machine that has the time.
    if [ "${SANDHOG_TEST_LONG:-}" != 1 ]; then set -- -m "not long" "$@"; fi
    # What lies there is of this run.
    rm -rf build/screenshots build/junit*.xml
    say "tests"
    run_tests "$bin/python" "$@" || failed+=(tests)
    [ ${#failed[@]} -eq 0 ]
}

main "$@"
