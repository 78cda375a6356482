"""Calls written as text are found, and answers that only show JSON or code are left alone."""

import json
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.endpoint.written_calls import written_calls

NAMES = ["Bash", "Read", "Grep", "TodoWrite"]
BASH = '{"name": "Bash", "arguments": {"command": "ls"}}'


def found(text: str) -> list[tuple[str, str]]:
    return [(call.name, call.form) for call in written_calls(text, NAMES)]


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>{BASH}</tool_call>",
        f"I look around.\n\n<tool_call>\n{BASH}\n</tool_call>",
        f"<tool_call>\n{BASH}",
        '<tool_call>{"name": "Bash", "arguments": {"comma',
        "<tool_call>\nBash\n<arg_key>command</arg_key><arg_value>ls</arg_value></tool_call>",
        "<function=Bash>\n<parameter=command>\nls\n</parameter>\n</function>",
        "<tool_call>\n<function=Bash>\n<parameter=command>ls</parameter></function></tool_call>",
        '<function_calls>\n<invoke name="Bash">\n<parameter name="command">ls</parameter>\n</invoke></function_calls>',
        f"[TOOL_CALLS] [{BASH}]",
        '[TOOL_CALLS]Bash[ARGS]{"command": "ls"}',
        '<|python_tag|>{"name": "Bash", "parameters": {"command": "ls"}}',
        '<|python_tag|>Bash.call(command="ls")',
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>Bash\n```json\n{}\n```<｜tool▁call▁end｜>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.Bash:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        '<|channel|>commentary to=functions.Bash <|constrain|>json<|message|>{"command":"ls"}',
    ],
)
def test_a_call_in_the_tags_of_a_chat_template_is_found(text: str) -> None:
    assert found(text) == [("Bash", "tags")]


def test_every_tag_counts_also_for_a_tool_that_there_is_not() -> None:
    other = BASH.replace("Bash", "run_shell")
    assert found(f"<tool_call>{BASH}</tool_call>\n<tool_call>{other}</tool_call>") == [
        ("Bash", "tags"),
        ("run_shell", "tags"),
    ]


@pytest.mark.parametrize("word", ["", "json", "tool_call", "tool_code"])
def test_a_fence_at_the_end_that_is_a_call_is_found(word: str) -> None:
    assert found(f"I will list the files.\n\n```{word}\n{BASH}\n```\n") == [("Bash", "fence")]
    assert found(f"```{word}\n{BASH}") == [("Bash", "fence")]


def test_a_fence_of_python_or_tags_is_found() -> None:
    assert found('```tool_code\nprint(default_api.Bash(command="ls"))\n```') == [("Bash", "fence")]
    assert found(f"```xml\n<tool_call>{BASH}</tool_call>\n```") == [("Bash", "fence")]


@pytest.mark.parametrize(
    "text",
    [
        BASH,
        f"Let me look.\n\n{BASH}",
        f"Let me look.\n{json.dumps(json.loads(BASH), indent=2)}",
        '{"name": "Bash", "arguments": "{\\"command\\": \\"ls\\"}"}',
        '{"name": "functions.Bash", "arguments": {"command": "ls"}}',
        '{"type": "function", "id": "1", "function": {"name": "Bash", "arguments": "{}"}}',
        '{"tool_calls": [{"function": {"name": "Bash", "arguments": {}}}]}',
        '{"tool": "Bash", "args": {"command": "ls"}}',
        '{"thought": "list", "action": "Bash", "action_input": {"command": "ls"}}',
    ],
)
def test_bare_json_that_is_a_call_is_found(text: str) -> None:
    assert found(text) == [("Bash", "json")]


def test_a_list_of_calls_is_all_of_them() -> None:
    assert found(f"[{BASH}, {BASH.replace('Bash', 'Read')}]") == [("Bash", "json"), ("Read", "json")]


@pytest.mark.parametrize(
    "text",
    [
        'functions.Bash(command="ls -la")',
        'Bash(command="ls", timeout_s=3)',
        '[Bash(command="ls")]',
        'Now I list the files.\nBash(command="ls")',
    ],
)
def test_a_line_of_python_that_is_a_call_is_found(text: str) -> None:
    assert found(text) == [("Bash", "python")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Done: all tests pass.",
        'Use `Bash(command="ls")` to list files.',
        "Read(path)",
        'Bash("ls")',
        "The model writes <tool_call> tags around its calls.",
        "<tool_call> is a tag of some chat templates.",
        f"Such a text is `<tool_call>{BASH}</tool_call>`, and it is not run.",
        f"A call looks like this:\n```json\n{BASH}\n```\nIts name must be known.",
        f"```\n<tool_call>{BASH}</tool_call>\n```\nis what the template makes.",
        'The settings:\n```json\n{"name": "demo", "version": 1}\n```',
        '```json\n{"name": "demo", "arguments": {"a": 1}}\n```',
        "```rust\nfn main() { Bash(command) }\n```",
        '```python\ndef listed():\n    return Bash(command="ls")\n```',
        '{"name": "demo", "arguments": {"a": 1}}',
        '{"name": "Bash"}',
        '{"name": "Bash", "description": "A shell", "parameters": {"type": "object"}}',
        '{"name": "Bash", "arguments": "not JSON"}',
        "[1, 2, 3]",
        "{}",
        "[]",
        '{"a": [' * 5000,
        "x=" + "(" * 5000 + "Bash",
    ],
)
def test_an_answer_is_left_alone(text: str) -> None:
    assert found(text) == []


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(string.ascii_letters, max_size=6), inner, max_size=3)
    ),
    max_leaves=10,
)
_prose = st.text(string.ascii_letters + " .,;:!?'\n()[]{}=<>/`", max_size=200)


@settings(max_examples=100, deadline=None)
@given(_prose)
def test_no_prose_is_a_call(text: str) -> None:
    assert written_calls(text, NAMES) == ()


@settings(max_examples=100, deadline=None)
@given(_json, st.sampled_from(["```json\n{}\n```", "{}", "The result:\n\n{}"]))
def test_no_json_that_names_no_tool_is_a_call(value: object, shown: str) -> None:
    assert written_calls(shown.replace("{}", json.dumps(value, indent=1)), NAMES) == ()


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(NAMES),
    st.dictionaries(st.text(string.ascii_letters, min_size=1, max_size=8), st.text(max_size=20), max_size=3),
    st.sampled_from(["json", "fence", "tags"]),
    st.sampled_from(["", "I go on.\n\n"]),
    st.booleans(),
)
def test_any_call_is_found_however_it_is_written(
    name: str, arguments: dict[str, str], form: str, before: str, is_ascii: bool
) -> None:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=is_ascii)
    written = {"json": call, "fence": f"```json\n{call}\n```", "tags": f"<tool_call>\n{call}\n</tool_call>"}[form]
    assert [(c.name, c.form) for c in written_calls(before + written, NAMES)] == [(name, form)]
