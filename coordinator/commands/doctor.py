"""`sandhog doctor`: whether everything stands that sessions need, and what to do where it does not."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from coordinator.errors import ConfigError

app = typer.Typer(add_completion=False)
MARKS = {"ok": "✓", "warning": "!", "failure": "✗"}
EXIT_CODES = {"ok": 0, "warning": 1, "failure": 2}
MOST_CHARS = 400


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: the worst, and each finding.")] = False,
    bundle: Annotated[
        Path | None, typer.Option(help="Also write a .tar.gz for those who help: findings, settings, logs; no secrets.")
    ] = None,
    no_node: Annotated[
        bool, typer.Option("--no-node", help="Leave out Docker and boxes: this machine has a coordinator alone.")
    ] = False,
    image: Annotated[str | None, typer.Option(help="Image of the box that is tried (SANDHOG_IMAGE).")] = None,
) -> None:
    """Look at settings, Redis, nodes, volume, endpoint, engine, a real box, disks and limits.

    Each line says what was found, and what to do about it. Exit code: 0 all well, 1 warnings, 2 failures.
    """
    # The endpoint's client and all below it are heavy.
    from coordinator.commands.doctor_bundle import write_bundle
    from coordinator.commands.doctor_run import examine
    from coordinator.visible import visible_line
    from worker.contract.findings import FINDINGS

    if bundle is not None and bundle.exists():
        raise ConfigError(f"--bundle {bundle}: it is there already; name a new file.")
    findings = examine(image, with_node=not no_node)
    worst = max((finding.state for finding in findings), key=lambda state: EXIT_CODES[state], default="ok")
    if as_json:
        told = {"worst": worst, "findings": FINDINGS.dump_python(findings, mode="json")}
        print(json.dumps(told, ensure_ascii=False))
    else:
        for finding in findings:
            mark = MARKS[finding.state]
            print(_printable(f"{mark} {finding.area:<9} {visible_line(finding.said, MOST_CHARS)}"))
            if finding.fix:
                print(_printable(f"  {'':<9} → {visible_line(finding.fix, MOST_CHARS)}"))
    if bundle is not None:
        write_bundle(bundle, findings)
        print(f"sandhog: written: {bundle}", file=sys.stderr)
    sys.stdout.flush()
    raise typer.Exit(EXIT_CODES[worst])


def _printable(text: str) -> str:
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
