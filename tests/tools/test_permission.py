import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.permission import BOXED, GUARDED, Policy, Terms, decide, parts, repeatable
from tools.registry import builtin_registry
from tools.verdict import Decision
from tools.wrappers import WRAPPERS


def decision_of(command: str) -> Decision:
    return decide("Bash", {"command": command}, GUARDED).decision


NEVER_ALLOWED = [
    "pwd\nrm -rf victim",
    "/bin/rm x",
    "\\rm x",
    '"rm" x',
    "r''m x",
    'r"m" x',
    "$'rm' x",
    "$'\\x72m' x",
    "command rm x",
    "env rm x",
    "env A=b rm x",
    "env -S 'rm x'",
    "env -u cat rm x",
    "nohup rm x",
    "timeout 5 rm x",
    "timeout -s 9 5 rm x",
    "nice -n 5 rm x",
    "xargs rm",
    "echo x | xargs rm",
    "echo x | xargs -I{} rm {}",
    "echo x | xargs -d + rm",
    "find . -delete",
    "find . -exec rm {} +",
    "find . -exec rm {} \\;",
    "find . -exec xargs -d + rm x \\;",
    "find . -ok cat {} \\;",
    "find . -fprint out",
    "git -C . reset --hard",
    "git reset",
    "git clean -fdx",
    "git -c core.pager=x log",
    "git branch new",
    "git tag new",
    "git log --output=f",
    "git log --outpu=f",
    "git log -S -- --output=f",
    "git diff --no-index a b",
    "git diff --ext-diff",
    "git log --format=%GK",
    "git log --pretty=format:%h%+G?",
    "git show --show-signature",
    "git grep -Oless x",
    "git push",
    "bash -lc 'ls'",
    "sh x.sh",
    "python3 -c 'print(1)'",
    "perl -e 1",
    "awk 1 f",
    "eval ls",
    "builtin eval ls",
    "exec rm x",
    "source x",
    ". x",
    "echo $(rm x)",
    "echo $(ls)",
    "echo `ls`",
    "cat <(ls)",
    "cat x | sh",
    "ls | bash",
    "if true; then rm x; fi",
    "for i in a; do rm $i; done",
    "while true; do ls; done",
    "ls() { rm x; }; ls",
    "case x in *) rm x;; esac",
    "alias ls=rm",
    "PATH=. ls",
    "export PATH=.; ls",
    "x=rm; $x y",
    "$x",
    "${x:-ls}",
    "echo ${x@P}",
    "echo $[1]",
    "echo $((x))",
    "./cat x",
    "bin/cat x",
    "rm${IFS}x",
    "{rm,x}",
    "/bin/r? x",
    "echo x > y",
    "echo x >> y",
    "cat < /dev/tcp/host/80",
    "cat <> x",
    "echo x >& y",
    "echo x &> y",
    "cat <<EOF\n$(rm x)\nEOF",
    "sh <<< ls",
    "ls \\\n; rm x",
    "cat\u00a0x",
    "ls 'unfinished",
    "! if ls",
    "ls )",
    "cat f \\ $ \nrm x",
    "cat f $\nrm x",
    "cat < \\ \nrm x",
    "cat f <x $\nrm x",
    "sed -n 1p f/$x",
    "env -u <f -e2>&1 rm",
    "command 2>/dev/null rm x",
    "command 2>/dev/null $x",
    "(ls) 2>/dev/null rm x",
    "sed -n '1e id' f",
    "sed -i s/a/b/ f",
    "sed -n -i.bak 1p f",
    "sed --in-pl 1p f",
    "sed -n 'w f' f",
    "sed 's/a/b/w f' f",
    "sed 's/a/b/e' f",
    "sed -f script f",
    "sed -n 1p *",
    "sed -n $x f",
    "sort -o f f",
    "sort --outp=f f",
    "sort --compress-program=sh f",
    "sort *",
    "uniq a b",
    "tree -o f",
    "rg --pre sh x",
    "printf -v PATH x",
    "test -v 'a[$(id)]'",
    "env -i PATH=. ls",
    "sudo ls",
    "time -o f ls",
    "tee f",
    "",
    "# nothing",
    "ls" * 60_000,
    "(" * 20_000,
    "$(" * 20_000,
]

ALLOWED = [
    "sed -n 1,5p f",
    "sed -n '/def x/,/^$/p' f",
    "sed 's/a/b/g' f",
    "sed -n -e 1p -e '$p' f",
    "ls -la src *.py",
    "cat x | head -5 | wc -l",
    "cd sub && pwd; ls || true",
    "ls # what is here",
    "grep -rn rm src 2>/dev/null",
    "cat x 2>&1 >/dev/null",
    "wc -l < f",
    "/bin/cat x",
    "echo more",
    'echo "$HOME" \'rm -rf x\' "it\'s; rm x"',
    "git status",
    "git --no-pager log --oneline -5",
    "git diff HEAD~1 -- a b",
    "git show HEAD:f",
    "git log --format=%h%ad",
    "git tag -l cat",
    "git branch -a",
    "find . -name '*.py' -not -path './x/*' -type f",
    "find . -name '*.py' -exec grep -l x {} +",
    "find . -name '*.py' -exec sed -n 1p {} \\;",
    "find . -name '*.py' | xargs grep -n x",
    "find . -print0 | xargs -0 -n 1 wc -l",
    "command -v rm",
    "timeout 5 cat x",
    "env",
    "sort -k2 -rn f | uniq -c",
    "rg -n --hidden -g '*.py' x src",
    "! grep x f",
    "(cd sub && ls)",
    "test -f x && cat x",
    "cat <<< hello",
    "cat 2>/dev/null x",
]

DENIED = ["sudo ls", "rm x", "ls && /bin/rm x", "git reset", "git -C . reset --hard", "find . -delete", "cat x | sh",
          "bash -lc ls", "eval ls", "echo $(rm x)", "if true; then rm x; fi", "f() { rm x; }", "xargs rm",
          "strace -f rm x", "watch rm x", "! if true; then rm x; fi", "! while ls; do rm x; done",
          "env A=b rm x", "find . -exec rm {} +", "busybox rm x", "command 2>/dev/null rm x"]  # fmt: skip

NOT_DENIED = ["npm run watch", "pytest tests/top", "git tag -l cat", "echo more", "grep -r rm src", "mv a b",
              "pip install x", "python3 x.py", "bash x.sh", "make clean", "git commit -m 'rm x'"]  # fmt: skip


@pytest.mark.parametrize("command", NEVER_ALLOWED, ids=lambda command: command[:40])
def test_a_command_that_may_change_something_is_never_allowed(command: str) -> None:
    assert decision_of(command) is not Decision.ALLOW


@pytest.mark.parametrize("command", ALLOWED)
def test_a_command_that_only_reads_is_allowed(command: str) -> None:
    verdict = decide("Bash", {"command": command}, GUARDED)
    assert verdict.decision is Decision.ALLOW, verdict.reason


@pytest.mark.parametrize("command", DENIED)
def test_a_command_that_destroys_or_hides_is_denied(command: str) -> None:
    assert decision_of(command) is Decision.DENY


@pytest.mark.parametrize("command", NOT_DENIED)
def test_an_ordinary_command_is_not_denied(command: str) -> None:
    assert decision_of(command) is not Decision.DENY


WRAPPINGS = [
    "{}", "\\{}", "command {}", "builtin {}", "exec {}", "env {}", "env -i {}", "env A=b {}", "nohup {}", "nice {}",
    "nice -n 3 {}", "timeout 5 {}", "timeout -k 1 5 {}", "time {}", "stdbuf -o0 {}", "setsid {}", "xargs {}",
    "xargs -n 1 {}", "busybox {}", "find . -exec {} {{}} \\;", "find . -exec {} {{}} +", "ls; {}", "ls\n{}", "ls | {}",
    "ls && {}", "true || {}", "! {}", "( {} )", "{{ {}; }}", "if true; then {}; fi", "for i in 1; do {}; done",
    "f() {{ {}; }}; f", "echo $({})", "echo `{}`", "cat <({})", "echo \"$({})\"", "[ -n \"$({})\" ]", "{} &",
    "cat <<< \"$({})\"", "A=b {}", "2>/dev/null {}", "case x in *) {};; esac", "sh -c '{}'", "eval {}",
    *(f"{name} {{}}" for name in WRAPPERS), *(f"{name} -x {{}}" for name in WRAPPERS),
]  # fmt: skip


@given(
    denied=st.sampled_from(["rm x", "sudo ls", "/bin/rm -rf .", "git reset --hard", "shred f", "unlink f"]),
    wrappings=st.lists(st.sampled_from(WRAPPINGS), max_size=5),
)
def test_no_wrapping_makes_a_denied_command_allowed(denied: str, wrappings: list[str]) -> None:
    command = denied
    for wrapping in wrappings:
        command = wrapping.format(command)
    assert decision_of(command) is not Decision.ALLOW


@given(st.text())
def test_any_text_gets_a_verdict(command: str) -> None:
    assert decision_of(command) in Decision


BEFORE = st.sampled_from(
    ["{", "{1", "{1..", "{1..2", "-", "[ -", "<<", "<<E\nx$", "$", "${", "<(", "'", '"', "$'", "[[ a =~ "]
)


@given(st.lists(st.one_of(BEFORE, st.text(max_size=3), st.characters(min_codepoint=0x10000)), max_size=8).map("".join))
def test_no_character_makes_the_grammar_look_beyond_its_tables(command: str) -> None:
    # It once ended the process, now and then.
    assert decision_of(command) in Decision


@pytest.mark.parametrize(
    "command", ["{\U000ee324", "{1..\U000ee324 x", "- \U000c14b5", "cat {\U000f0d92", "caté x", "écho x"]
)
def test_characters_beyond_ascii_are_letters_of_unknown_names(command: str) -> None:
    for _ in range(20):
        assert decision_of(command) is Decision.ASK or command.startswith("cat {")


def test_characters_beyond_ascii_are_kept_in_words() -> None:
    assert decision_of("cat 'grüße' ü.txt | grep -n é") is Decision.ALLOW
    assert repeatable("Bash", {"command": "make ü 'ß'"}, GUARDED) == frozenset({("make", "ü", "ß")})


@pytest.mark.parametrize(("tool", "expected"), [
    ("Read", Decision.ALLOW), ("Grep", Decision.ALLOW), ("Glob", Decision.ALLOW),
    ("Edit", Decision.ASK), ("Write", Decision.ASK), ("Nope", Decision.DENY),
])  # fmt: skip
def test_guarded_lets_reading_tools_run_and_asks_for_changes(tool: str, expected: Decision) -> None:
    assert decide(tool, {}, GUARDED).decision is expected


def test_boxed_lets_every_known_tool_run_and_no_other() -> None:
    assert decide("Bash", {"command": "rm -rf /"}, BOXED).decision is Decision.ALLOW
    assert decide("Nope", {}, BOXED).decision is Decision.DENY


def test_a_verdict_names_what_decided() -> None:
    assert "`rm`" in decide("Bash", {"command": "ls; rm x"}, GUARDED).reason


def test_a_verdict_marks_the_part_that_decided() -> None:
    for command, part in [
        ("ls; rm x", "rm x"),
        ("cd a && make all | tail", "make all"),
        ("ls -l > out", "> out"),
        ("écho ü; sudo ls", "sudo ls"),
        ("ls\u00a0x", "\u00a0"),
        ("for i in 1; do ls; done", "for i in 1; do ls; done"),
    ]:
        verdict = decide("Bash", {"command": command}, GUARDED)
        assert verdict.part is not None
        assert command[slice(*verdict.part)] == part


READ_ONLY = Terms(Policy.BOXED, is_read_only=True)


@pytest.mark.parametrize("command", ALLOWED)
def test_a_session_that_only_reads_may_read(command: str) -> None:
    assert decide("Bash", {"command": command}, READ_ONLY).decision is Decision.ALLOW


@pytest.mark.parametrize("command", [*NEVER_ALLOWED, *NOT_DENIED[5:]], ids=lambda command: command[:40])
def test_a_session_that_only_reads_is_denied_the_rest_and_asks_nobody(command: str) -> None:
    assert decide("Bash", {"command": command}, READ_ONLY).decision is Decision.DENY


def test_a_session_that_only_reads_has_the_tools_that_do() -> None:
    allowed = [name for name in ("Read", "Grep", "Glob", "Edit", "Write") if _allows(name, READ_ONLY)]
    assert allowed == ["Read", "Grep", "Glob"]


def _allows(tool: str, terms: Terms) -> bool:
    return decide(tool, {}, terms).decision is Decision.ALLOW


def test_a_principals_tools_are_all_that_its_sessions_have() -> None:
    terms = Terms(Policy.BOXED, tools=frozenset({"Read"}))
    assert [name for name in builtin_registry().names() if _allows(name, terms)] == ["Read"]


@pytest.mark.parametrize("path", [".git/config", "a/.git/hooks/post-commit", "sub/.gitattributes", ".GIT/config"])
def test_who_is_asked_about_gits_own_files_is_told_what_that_means(path: str) -> None:
    assert "git may later run" in decide("Write", {"path": path}, GUARDED).reason
    assert "git may later run" not in decide("Write", {"path": path.lower().replace("git", "gat")}, GUARDED).reason


class TestRepeatable:
    @pytest.mark.parametrize(
        ("command", "expected"),
        [
            ("make all", {("make", "all")}),
            ("cd sub && make all | tail -3", {("make", "all")}),
            ("make 'a b'; npm test", {("make", "a b"), ("npm", "test")}),
            ("timeout 5 make", {("timeout", "5", "make")}),
        ],
    )
    def test_what_was_asked_about_is_told_in_words(self, command: str, expected: set[tuple[str, ...]]) -> None:
        assert repeatable("Bash", {"command": command}, GUARDED) == frozenset(expected)

    @pytest.mark.parametrize(
        "command",
        [
            "make $x", "make *", "echo x | python3", "python3 < f", "python3 <<< x", "(echo x | (cd a; python3))",
            "for i in 1; do make; done", "make > log", "A=b make", "make $(ls)", "ls -l", "", "ls | (make; make)",
        ],
    )  # fmt: skip
    def test_what_words_alone_do_not_tell_is_not_repeatable(self, command: str) -> None:
        assert repeatable("Bash", {"command": command}, GUARDED) is None

    def test_calls_without_a_command_are_not(self) -> None:
        assert repeatable("Write", {"path": "x", "content": ""}, GUARDED) is None


def test_each_command_of_a_text_has_its_own_verdict() -> None:
    found = parts("Bash", {"command": "ls && make | sudo x"}, GUARDED)
    assert [(part.text, part.verdict.decision.value) for part in found] == [
        ("ls", "allow"),
        ("make", "ask"),
        ("sudo x", "deny"),
    ]
    assert parts("Read", {"path": "x"}, GUARDED) == ()
