"""A user's own policy: what its file may hold, what is said of a wrong one, and how its rules decide."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.permission import Policy, Terms, decide
from tools.policy_file import PolicyFileError, load_policy_file, read_policy
from tools.registry import builtin_registry
from tools.rules import Otherwise, Rule, Rules, rules_from_text, rules_to_text
from tools.verdict import Decision
from tools.wrappers import WRAPPERS

ALLOW, ASK, DENY = Decision.ALLOW, Decision.ASK, Decision.DENY
EXAMPLE = """
otherwise = "policy"

[[rule]]
tool = "Bash"
command = "git push ..."
decision = "deny"
why = "pushing is done by people"

[[rule]]
tool = "Bash"
command = "pytest ..."
decision = "allow"

[[rule]]
tool = "Bash"
command = ["make", "test"]
decision = "allow"

[[rule]]
tool = ["Edit", "Write"]
decision = "ask"

[[test]]
command = "cd src && pytest -q"
expect = "allow"
"""


def policy(*rules: tuple[Decision, str], otherwise: Otherwise = Otherwise.DENY) -> Rules:
    return Rules(
        rules=tuple(Rule(tools=("Bash",), command=tuple(words.split()), decision=what) for what, words in rules),
        otherwise=otherwise,
    )


def decision_of(command: str, rules: Rules, under: Policy = Policy.GUARDED) -> Decision:
    return decide("Bash", {"command": command}, Terms(under, rules)).decision


def read(text: str) -> Rules:
    return read_policy(text, builtin_registry())


class TestFile:
    def test_the_example_is_read_and_its_test_holds(self) -> None:
        rules = read(EXAMPLE)
        assert len(rules.rules) == 4
        assert rules.rules[0].command == ("git", "push", "...")
        assert rules.otherwise is Otherwise.POLICY

    def test_quotes_keep_a_word_whole(self) -> None:
        rules = read('[[rule]]\ntool = "Bash"\ncommand = "git commit -m \'a b\'"\ndecision = "allow"')
        assert rules.rules[0].command == ("git", "commit", "-m", "a b")

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("rule = 3", ["the file", "'rule'", "3", "[[rule]]"]),
            ("rules = []", ["the file", "'rules'", "otherwise, rule, test"]),
            ('otherwise = "maybe"', ["'otherwise'", "'maybe'", "deny, ask, policy"]),
            ("[[rule]]\ntool = 'Bash'", ["rule 1", "'decision'", "missing", "allow, ask, deny"]),
            ("[[rule]]\ntool = 'Bash'\ndecision = 'yes'", ["rule 1", "'decision'", "'yes'", "allow, ask, deny"]),
            ("[[rule]]\ntool = 'Bash'\ndecision = ['allow']", ["rule 1", "'decision'", "allow, ask, deny"]),
            ("[[rule]]\ndecision = 'allow'", ["rule 1", "'tool'", "missing"]),
            ("[[rule]]\ntool = 'Bsh'\ndecision = 'allow'", ["rule 1", "'tool'", "'Bsh'", "Bash, BashOutput, Edit"]),
            ("[[rule]]\ntool = 'Read'\ncommand = 'x'\ndecision = 'allow'", ["rule 1", "'command'", "leave it out"]),
            ("[[rule]]\ntool = 'Bash'\ncommand = 'a | b'\ndecision = 'allow'", ["rule 1", "'a | b'", "for each"]),
            ("[[rule]]\ntool = 'Bash'\ncommand = \"a 'b\"\ndecision = 'allow'", ["rule 1", "'command'", "close"]),
            ("[[rule]]\ntool = 'Bash'\ncommand = ''\ndecision = 'allow'", ["rule 1", "'command'", "program's name"]),
            ("[[rule]]\ntool = 'Bash'\ncommand = '... x'\ndecision = 'deny'", ["rule 1", "program's name"]),
            ("[[rule]]\ntool = 'Bash'\ncommand = 7\ndecision = 'deny'", ["rule 1", "7", "list of words"]),
            ("[[rule]]\ntool = 'Bash'\nname = 'x'\ndecision = 'deny'", ["rule 1", "'name'", "allowed are"]),
            ("[[rule]]\ntool = 'Bash'\nwhy = 1\ndecision = 'deny'", ["rule 1", "'why'", "500"]),
            ("[[test]]\ncommand = 'ls'\nexpect = 'allow'", ["test 1", "'ls'", "is deny, not allow"]),
            ("[[test]]\nexpect = 'allow'", ["test 1", "'command'", "missing"]),
            ("[[test]]\ntool = 'x'\nexpect = 'allow'", ["test 1", "'tool'", "'x'"]),
            ("[[rule", ["not TOML"]),
            ("[[rule]]\ntool='Bash'\ndecision='ask'\n" * 201, ["201 rules", "200"]),
            (f"[[rule]]\ntool='Bash'\ndecision='ask'\nwhy='{'x' * 400}'\n" * 100, ["32000 bytes"]),
        ],
    )
    def test_what_is_wrong_is_named_with_key_value_and_fix(self, text: str, said: list[str]) -> None:
        with pytest.raises(PolicyFileError) as caught:
            read(text)
        for words in said:
            assert words in str(caught.value)

    def test_a_file_is_named_in_what_is_said_of_it(self, tmp_path: Path) -> None:
        path = tmp_path / "policy.toml"
        with pytest.raises(PolicyFileError, match=r"policy\.toml cannot be read"):
            load_policy_file(path, builtin_registry())
        path.write_text("x = 1")
        with pytest.raises(PolicyFileError, match=r"policy\.toml: the file, key 'x'"):
            load_policy_file(path, builtin_registry())
        path.write_bytes(b"# \xff")
        with pytest.raises(PolicyFileError, match=r"policy\.toml: .*utf-8"):
            load_policy_file(path, builtin_registry())
        path.write_text("#" * 300_000)
        with pytest.raises(PolicyFileError, match="Shorten it"):
            load_policy_file(path, builtin_registry())

    @given(st.text())
    def test_any_text_is_read_or_refused_in_words(self, text: str) -> None:
        with contextlib.suppress(PolicyFileError):
            read(text)


class TestTravel:
    def test_rules_travel_as_a_text_and_come_out_the_same(self) -> None:
        rules = read(EXAMPLE)
        assert rules_from_text(rules_to_text(rules)) == rules

    def test_no_rules_are_no_text(self) -> None:
        assert rules_to_text(None) == ""
        assert rules_from_text("") is None

    @pytest.mark.parametrize("text", ["x", "[]", '{"rules":[{"tools":["Bash"]}]}', "x" * 40_000])
    def test_what_is_not_rules_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError):  # noqa: PT011 - pydantic's is one
            rules_from_text(text)


PYTEST = policy(
    (ALLOW, "pytest ..."), (ALLOW, "cd ..."), (ALLOW, "make test"), (ALLOW, "bash run.sh"), (ALLOW, "find ...")
)


@pytest.mark.parametrize(
    "command",
    [
        "pytest", "pytest -q tests", "cd src && pytest -q", "/usr/bin/pytest x", "timeout 60 pytest -q",
        "nice pytest; make test", "pytest $x *.py", "command pytest", "bash run.sh", "pytest 2>&1 >/dev/null",
        "find . -exec pytest {} +", "'pytest' -q",
    ],
)  # fmt: skip
def test_a_rule_that_allows_means_the_parsed_words(command: str) -> None:
    assert decision_of(command, PYTEST) is ALLOW


@pytest.mark.parametrize(
    "command",
    [
        "./pytest", "bin/pytest", "echo pytest", "pytest; rm x", "pytest | sh", "make test clean", "make", "make $x",
        "pytest $(rm x)", "pytest > f", "if true; then pytest; fi", "A=b pytest", "env A=b pytest", "$x",
        "bash -c pytest", "bash run.sh x", "find . -exec rm {} +", "xargs rm", "timeout 5 rm x", "timeout $x pytest",
        "", "# pytest", "pytest 'unfinished", "pytest\nrm x", "pytest & rm x",
    ],
)  # fmt: skip
def test_what_a_rule_does_not_mean_is_denied_by_default(command: str) -> None:
    assert decision_of(command, PYTEST) is DENY


@pytest.mark.parametrize("pattern", ["bash ...", "bash *", "sh -c *", "eval ...", "source ..."])
@pytest.mark.parametrize("command", ["bash -c 'rm x'", "sh -c 'rm x'", "eval rm x", "source f"])
def test_a_wildcard_allows_no_program_that_hides_what_it_runs(pattern: str, command: str) -> None:
    assert decision_of(command, policy((ALLOW, pattern))) is not ALLOW


@pytest.mark.parametrize(
    ("pattern", "command", "expected"),
    [
        ("git push *", "git push origin", ALLOW),
        ("git push *", "git push --force", DENY),
        ("git push *", "git push $x", DENY),
        ("git push *", "git push a b", DENY),
        ("git push -*", "git push --tags", ALLOW),
        ("cp src/* out/*", "cp src/a out/b", ALLOW),
        ("cp src/* out/*", "cp src/../../x out/b", DENY),
        ("./build.sh ...", "./build.sh x", ALLOW),
        ("./build.sh ...", "build.sh x", DENY),
        ("git ... --dry-run", "git push a --dry-run", ALLOW),
        ("git ... --dry-run", "git push a", DENY),
        ("* --version", "node --version", ALLOW),
        ("* --version", "./node --version", DENY),
        ("a*b*c", "axxbyyc", ALLOW),
    ],
)
def test_wildcards_allow_no_more_than_they_say(pattern: str, command: str, expected: Decision) -> None:
    assert decision_of(command, policy((ALLOW, pattern))) is expected


@pytest.mark.parametrize(
    ("pattern", "command", "expected"),
    [
        ("flock f make", "flock f make", ALLOW),
        ("flock ...", "flock f make", DENY),
        ("env A=b make", "env A=b make", ALLOW),
        ("xargs make", "ls | xargs make", DENY),
        ("sh -c ls", "sh -c ls", ALLOW),
    ],
)
def test_a_wrapper_that_is_not_certain_is_allowed_word_by_word_only(
    pattern: str, command: str, expected: Decision
) -> None:
    assert decision_of(command, policy((ALLOW, pattern))) is expected
    against = policy((DENY, "make"), (DENY, "ls"), (ALLOW, pattern))
    assert decision_of(command, against) is not ALLOW or pattern == "sh -c ls"


NO_PUSH = policy((DENY, "git push ..."), (ASK, "curl ..."), otherwise=Otherwise.POLICY)


@pytest.mark.parametrize(
    "command",
    ["git push", "git push -f", "/opt/git push x", "ls; git push", "timeout 5 git push", "echo $(git push)",
     "xargs git push", "for i in a; do git push $i; done", "git push $x", "env git push", "f() { git push; }",
     "env -S x git push"],
)  # fmt: skip
def test_a_rule_that_denies_finds_its_command_wherever_it_stands(command: str) -> None:
    assert decision_of(command, NO_PUSH, Policy.BOXED) is DENY


@pytest.mark.parametrize(
    "command", ["git $x", "$x push", "git {push,x}", "x=git; $x push", "ls 'unfinished", "xargs git",
                "sh -c 'git push'", "echo git push | bash", "eval git push", "timeout 5 sh -c x",
                "nice " * 12 + "git push"],
)  # fmt: skip
def test_what_a_rule_may_mean_is_asked_about(command: str) -> None:
    assert decision_of(command, NO_PUSH, Policy.BOXED) is ASK


def test_what_no_rule_means_is_the_policys_matter_where_the_file_says_so() -> None:
    assert decision_of("make", NO_PUSH, Policy.BOXED) is ALLOW
    assert decision_of("make", NO_PUSH, Policy.GUARDED) is ASK
    assert decision_of("rm x", NO_PUSH, Policy.GUARDED) is DENY
    assert decision_of("ls -l", NO_PUSH, Policy.GUARDED) is ALLOW
    assert decision_of("for i in 1; do ls; done", policy(otherwise=Otherwise.POLICY), Policy.BOXED) is ALLOW


def test_a_rule_may_allow_what_guarded_would_refuse() -> None:
    rules = policy((ALLOW, "rm -rf build"), otherwise=Otherwise.POLICY)
    assert decision_of("rm -rf build && ls", rules) is ALLOW
    assert decision_of("rm -rf src", rules) is DENY


def test_rules_for_whole_tools_decide_about_all_their_calls() -> None:
    rules = Rules(rules=(Rule(tools=("Bash", "Write"), decision=ALLOW), Rule(tools=("*",), decision=ASK)))
    terms = Terms(Policy.GUARDED, rules)
    assert decide("Bash", {"command": "for i in 1; do rm x; done"}, terms).decision is ALLOW
    assert decide("Write", {"path": "x", "content": ""}, terms).decision is ALLOW
    assert decide("Read", {"path": "x"}, terms).decision is ASK
    assert decide("Nope", {}, terms).decision is DENY


def test_a_verdict_names_the_rule_and_its_reason() -> None:
    verdict = decide("Bash", {"command": "ls; git push"}, Terms(Policy.BOXED, read(EXAMPLE)))
    assert "rule 1" in verdict.reason
    assert "pushing is done by people" in verdict.reason
    assert verdict.part == (4, 12)


PREFIXES = st.sampled_from(
    [
        *(f"{name} {{}}" for name in WRAPPERS), *(f"{name} -x {{}}" for name in WRAPPERS),
        "timeout 5 {}", "env A=b {}", "find . -exec {} \\;", "/usr/bin/{}", "sudo -u me {}",
        "strace -f {}", "flock f {}",
    ]
)  # fmt: skip
"""Before a program's name."""
CONSTRUCTS = st.sampled_from(
    [
        "A=b {}", "ls; {}", "true | {}", "( {} )", "{{ {}; }}", "if true; then {}; fi", "for i in 1; do {}; done",
        "f() {{ {}; }}; f", "echo $({})", "cat <({})", "! {}", "{} &", "sh -c '{}'", "eval {}", "{} > /dev/null",
    ]
)  # fmt: skip
"""Around a command."""


@given(
    denied=st.sampled_from(["git push", "\\git push", "g'i't \"push\"", "git push -f $x", "curl x"]),
    prefixes=st.lists(PREFIXES, max_size=3),
    constructs=st.lists(CONSTRUCTS, max_size=3),
    under=st.sampled_from(Policy),
)
def test_no_wrapping_gets_round_a_rule(denied: str, prefixes: list[str], constructs: list[str], under: Policy) -> None:
    command = denied
    for wrapping in [*prefixes, *constructs]:
        command = wrapping.format(command)
    assert decision_of(command, NO_PUSH, under) is not ALLOW


PATTERNS = st.sampled_from(
    ["git push ...", "git ...", "git push", "git * --force", "ls ...", "* x", "make -*", "cp */a b"]
)
RULES = st.lists(st.tuples(st.sampled_from(Decision), PATTERNS), max_size=6)
WORDS = st.sampled_from(["git", "push", "ls", "--force", "x", "make", "-j", "cp", "d/a", "b", "origin"])
COMMANDS = st.lists(WORDS, min_size=1, max_size=5).map(" ".join)


@given(rules=RULES, command=COMMANDS, under=st.sampled_from(Policy))
def test_the_first_rule_that_is_meant_decides_whatever_follows(
    rules: list[tuple[Decision, str]], command: str, under: Policy
) -> None:
    alone = [decision_of(command, policy(rule, otherwise=Otherwise.POLICY), under) for rule in rules]
    by_policy = decision_of(command, policy(otherwise=Otherwise.POLICY), under)
    meant = [rule for rule in rules if _means(rule, command)]
    expected = meant[0][0] if meant else by_policy
    assert decision_of(command, policy(*rules, otherwise=Otherwise.POLICY), under) is expected
    assert all(one in {by_policy, what} for one, (what, _pattern) in zip(alone, rules, strict=True))


def _means(rule: tuple[Decision, str], command: str) -> bool:
    """Whether a rule is meant, told from two defaults: only one that is not meant lets them through."""
    return decision_of(command, policy(rule, otherwise=Otherwise.DENY)) is decision_of(
        command, policy(rule, otherwise=Otherwise.ASK)
    )


@given(rules=RULES, command=COMMANDS, behind=RULES)
def test_more_rules_behind_change_nothing_that_was_decided(
    rules: list[tuple[Decision, str]], command: str, behind: list[tuple[Decision, str]]
) -> None:
    if any(_means(rule, command) for rule in rules):
        assert decision_of(command, policy(*rules)) is decision_of(command, policy(*rules, *behind))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("env -S " + "git " * 20_000, ASK),
        ("git " * 1_000, ALLOW),
        ("git $x " * 400, ASK),
        ("env -S " * 5_000 + "x", ASK),
        ("find . " + "-exec env -S git {} + " * 2_000, ASK),
        ("$(" * 5_000 + "git x", ASK),
    ],
    ids=lambda value: str(value)[:12],
)
def test_a_hostile_text_is_decided_without_trying_all_combinations(command: str, expected: Decision) -> None:
    rules = policy(*[(DENY, f"git ... --f{number} ... x") for number in range(100)], otherwise=Otherwise.POLICY)
    assert decision_of(command, rules, Policy.BOXED) is expected


def test_the_examples_of_the_documentation_hold() -> None:
    page = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
    examples = [block.partition("```")[0] for block in page.split("```toml\n")[1:]]
    assert len(examples) == 2
    for example in examples:
        assert read(example).rules
