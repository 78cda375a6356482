"""Which test runs each command line of the pages' shell blocks, and why some are run by none.

Blocks behind `<!-- run -->` are run as they stand, see `test_runnable`. Any other line stands in one of these tables.
"""

import re
from collections.abc import Iterator

from tests.docs.pages import PAGES, SHELL, blocks

WHOLE_PAGES = {"http-api.md": "test_api.py::test_the_lines_of_the_documentation_work_as_they_stand"}
"""Pages all of whose blocks one test runs as they stand."""

LOOKING = """
sandhog attach last
sandhog approve
sandhog config
sandhog config --example > config.toml
sandhog explain 'cat notes.txt | tr a-z A-Z > loud.txt'
sandhog explain 'cd src && pytest -q | tail -3'
sandhog export last --format openai-jsonl
sandhog export last --out chat.json
sandhog logs last
sandhog logs last --follow
sandhog logs last --json
sandhog nodes
sandhog nodes --json
sandhog ps
sandhog ps --all
sandhog ps --all --json
sandhog ps --all --limit 20
sandhog ps --status waiting --status left
sandhog show 20300131-12 --step 3
sandhog show last
sandhog show last --json
sandhog show last --raw 3.0
sandhog top --once
sandhog wait last --timeout 600
sandhog gc --dry-run
sandhog gc
""".strip().splitlines()
"""Run by `test_looking` on a session that was kept, one after the other."""

STARTING = r"""
sandhog run "Fix the failing test" --workspace ~/src/app
sandhog resume last
sandhog resume last "Now the tests."
sandhog run --pin zone=a "Run the tests."
sandhog run "Update the dependencies" --allow-host packages.example.com --allow-host files.example.com
sandhog run "…" --allow-host "*.internal.example:8443"
sandhog run "Which of my tickets are about the crash?" --tools docs/examples/http_call.py
sandhog chat --workspace ~/src/app
printf 'list the files\nwhich is the largest?\n' | sandhog chat --copy
export SANDHOG_PROFILES='{"tests": {"memory": "4GiB", "cpus": 3, "pids": 2000, "tmp": "1GiB", "runtime": "runsc"}}'
sandhog run --profile tests "Run the suite"
sandhog doctor
sandhog doctor --json
sandhog doctor --no-node
sandhog doctor --bundle doctor.tar.gz
""".strip().splitlines()
"""Run by `test_runnable` one after the other, with boxes and a model that follows a script."""

SERVED = """
curl -s -H "Authorization: Bearer $SANDHOG_METRICS_TOKEN" http://127.0.0.1:8470/metrics
sandhog drain NODE
sandhog drain NODE --undo
sandhog approve SESSION 3.0 --allow
sandhog approve SESSION 3.0 --deny --note "use make"
sandhog approve SESSION 1-2-0.3.0 --allow
sandhog cancel last --wait 30
sandhog top
""".strip().splitlines()
"""Run by `test_runnable` against a server that runs: its own port, node and session stand for those of the pages."""

_EVALUATION = "test_evaluation_example.py::test_ten_tasks_are_evaluated_and_compared"
_OWN_LOOP = "test_runnable.py::test_a_loop_of_your_own_does_what_it_says"
_FORK = "test_api.py::test_a_session_that_runs_is_forked_and_goes_on_as_if_nothing_had_been"
_SET_UP = "test_scripts.py::test_setup_finds_nothing_left_to_do"
_SHELL = "test_reaching.py::test_a_shell_on_a_terminal_is_one_until_it_exits_or_its_session_ends"
_COPY = "test_reaching.py::test_files_go_into_a_box_and_come_out"
_PORT = "test_reaching.py::test_a_port_of_the_box_is_reached_from_here"
_STAYING = "test_staying.py::test_a_person_finds_all_that_is_in_the_box_until_ctrl_c"
_COMPLETION = "test_completing.py::test_each_shell_is_told_in_its_own_words"
_CALLS = "test_cancel_calls.py::test_a_step_is_cancelled_with_all_its_calls_and_the_session_goes_on"
_STACK = "test_compose.py::test_a_stack_is_used_hurt_upgraded_and_taken_down"
BY_OTHERS = {
    "sandhog batch TASKS.jsonl --out DIR --concurrency 8": _EVALUATION,
    "sandhog batch docs/examples/evaluation/tasks.jsonl --out /tmp/evaluation -j 4": _EVALUATION,
    "sandhog batch docs/examples/evaluation/tasks.jsonl --out /tmp/other --model OTHER": _EVALUATION,
    "sandhog compare /tmp/evaluation /tmp/other": _EVALUATION,
    'sandhog fork last "Try it with the standard library"': _FORK,
    'sandhog fork last "Try it with the standard library alone"': _FORK,
    'sandhog fork last "Now fix the test instead" --at-step 7 --model small-one': _FORK,
    "sandhog serve --port 8470": _OWN_LOOP,
    "export SANDHOG_API_TOKEN=$(openssl rand -hex 24)": _OWN_LOOP,
    """export SANDHOG_ROOTS='{"project": "/srv/project"}'""": _OWN_LOOP,
    "python -m coordinator.endpoint.scripted --script script.json --port 8000": (
        "test_scripted.py::test_it_is_also_a_program"
    ),
    "bash deploy/setup.sh": _SET_UP,
    "bash deploy/setup.sh --dev": _SET_UP,
    "sandhog --install-completion": _COMPLETION,
    "sandhog --show-completion": _COMPLETION,
    "sandhog cancel last --call 3.0": _CALLS,
    "sandhog cancel last --step 3": _CALLS,
    "sandhog shell last": _SHELL,
    "sandhog shell last -- ps aux": (
        "test_reaching.py::test_a_command_in_the_box_has_streams_exit_code_and_an_audit_line"
    ),
    "sandhog cp fixtures last:/tmp": _COPY,
    "sandhog cp last:build/report.txt .": _COPY,
    'sandhog run "Make the tests pass" --keep-box 30 --keep-box-of unfinished': _STAYING,
    "sandhog port last 8000": _PORT,
    "sandhog port last 8000:9000": _PORT,
    "bash deploy/compose.sh --tls up -d --wait": (
        "test_overlays.py::test_the_api_speaks_tls_with_the_stacks_certificate_alone"
    ),
    "bash deploy/compose.sh --worker up -d --wait": (
        "test_overlays.py::test_a_further_host_joins_over_tls_and_runs_sessions"
    ),
    "bash deploy/compose.sh --gvisor up -d --wait": "test_overlays.py::test_boxes_have_a_kernel_of_their_own",
    "bash deploy/compose.sh up -d --wait": _STACK,
    "bash deploy/compose.sh upgrade": _STACK,
    "curl -fsS http://127.0.0.1:8080/readyz": _STACK,
    "export SANDHOG_URL=http://127.0.0.1:8080 SANDHOG_API_TOKEN=$(bash deploy/compose.sh token)": _STACK,
    'curl -fsS "$SANDHOG_URL/v1/sessions" -H "Authorization: Bearer $SANDHOG_API_TOKEN"': _STACK,
}
"""Run by another test, with paths and addresses of its own: file and name."""

_CI = "a part of deploy/test.sh, which runs these tests"
NOT_RUN = {
    ". .venv/bin/activate": "puts the environment on the path of a person's shell; the tests are in it",
    "bash deploy/quickstart.sh": "sets a bare machine up; set-up and demo have tests of their own",
    'bash deploy/quickstart.sh "Find out why the tests fail and mend it."': "the same, with a real model",
    "bash deploy/test.sh": "runs these tests",
    ".venv/bin/python -m pytest -q tests/tools": _CI,
    ".venv/bin/ruff check . && .venv/bin/ruff format . && .venv/bin/mypy": _CI,
    "PYTHONPATH=. .venv/bin/lint-imports --no-logo": _CI,
    'sandhog run "Make the tests pass" --setup-file requirements.txt --setup "pip install -r requirements.txt"': (
        "needs a registry of packages; test_bring_along.py has a set-up without one"
    ),
    'sandhog run "Fix the failing test" --repo https://git.example.org/team/app --ref v1.2': (
        "needs a host elsewhere; test_repositories.py has one of its own"
    ),
    "git pull": "needs the repository that this one was cloned from",
    "export OPENAI_BASE_URL=https://models.example.com/v1": "needs a real model",
    "export OPENAI_BASE_URL=http://127.0.0.1:8000/v1": "the tests' endpoints have other ports",
}
"""Run by no test, and why."""

_COMMENT = re.compile(r"(?:^|\s{2,})#.*$")
_BLANK = re.compile(r"export \w+=(?:\S*…|host-2|agents\.example\.com)$")
"""A value that only the reader knows."""


def lines() -> Iterator[tuple[str, str]]:
    """Yield page and command line of each block that no mark and no test of a whole page covers."""
    for page in PAGES:
        for block in blocks(page):
            if block.language in SHELL and block.mark != "run" and page.name not in WHOLE_PAGES:
                for line in block.text.replace("\\\n", " ").splitlines():
                    told = _COMMENT.sub("", line).strip()
                    if told and not _BLANK.match(told):
                        yield page.name, told
