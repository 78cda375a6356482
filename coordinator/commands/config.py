"""`sandhog config`: the settings that hold, and documents of all there are."""

import os
import sys
from typing import Annotated

import typer

from coordinator.errors import ConfigError
from coordinator.visible import visible, visible_line

app = typer.Typer(add_completion=False)
MOST_CHARS = 100


@app.command()
def config(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: the file, and each setting.")] = False,
    example: Annotated[bool, typer.Option("--example", help="A settings file to begin with, explained.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The page of all settings.")] = False,
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not at its default.")] = False,
) -> None:
    """Print the settings that hold now, where each comes from, and none of their secrets.

    They stand in a TOML file (SANDHOG_CONFIG, else $XDG_CONFIG_HOME/sandhog/config.toml, else
    /etc/sandhog/config.toml) and in SANDHOG_* variables, which win. A wrong one ends this command with code 2.
    """
    from coordinator.commands import config_rows
    from worker.contract.setting_rows import ROWS
    from worker.contract.settings_file import SettingsWrong, settings_file

    if sum((as_json, example, markdown)) > 1:
        raise ConfigError("Take one of --json, --example and --markdown.")
    if example or markdown:
        write = config_rows.example if example else config_rows.markdown
        print(write(config_rows.bare_rows()), end="")
        return
    rows = config_rows.effective_rows()
    for words in config_rows.misspelt(rows, os.environ):
        print(f"sandhog: {visible_line(words, MOST_CHARS)}", file=sys.stderr)
    if changed:
        rows = [row for row in rows if row.origin != "default"]
    try:
        path = settings_file(os.environ)
    except SettingsWrong as exc:
        raise ConfigError(str(exc)) from exc
    if as_json:
        import json

        settings = ROWS.dump_python(rows, mode="json")
        print(json.dumps({"file": str(path) if path else None, "settings": settings}, ensure_ascii=False))
        return
    print(f"file: {visible(str(path)) if path else 'none'}")
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            print(f"\n[{section}]")
        value = "" if row.value is None else visible_line(config_rows.toml(row.value), MOST_CHARS)
        print(f"{f'{row.key} = {value}':<60} # {row.origin}")
