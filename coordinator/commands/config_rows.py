"""The settings of all processes together, and the documents made of them: models → **rows** → `sandhog config`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping

from pydantic import JsonValue

from coordinator.errors import ConfigError
from coordinator.service.serve_settings import ServeSettings
from coordinator.settings import Settings, read_model
from worker.contract.setting_rows import ROWS, SettingRow, rows_of
from worker.contract.settings_file import FILE_VARIABLE, PREFIX, SECTIONS, near

NODE_TIMEOUT_S = 120
OTHER_VARIABLES = {
    FILE_VARIABLE: "The settings file; empty for none.",
    "SANDHOG_URL": "Address of a server, for `sandhog wait` and the Python client.",
    "SANDHOG_MCP_TOKEN": "The token that a client of `sandhog mcp --http` brings.",
    "OPENAI_BASE_URL": "The model's endpoint; wins over `endpoint_url`.",
    "OPENAI_API_KEY": "The endpoint's key. It stands in no file, is never printed, and no worker gets it.",
}
"""What is said by variables alone."""
WIDTH = 116


def effective_rows() -> list[SettingRow]:
    """Return every setting as it holds now, of the sections in their order.

    Raises:
        ConfigError: one is wrong.
    """
    settings, serving = read_model(Settings), read_model(ServeSettings)
    own = [*rows_of(Settings, settings, os.environ), *rows_of(ServeSettings, serving, os.environ)]
    environment = {
        **os.environ,
        "SANDHOG_STATE_DIR": str(settings.state_dir),
        # A node cannot be without one; the embedded one's is not there yet.
        "SANDHOG_REDIS_URL": settings.redis_url or "unix:///embedded",
    }
    return _sorted([*own, *_node_rows([], environment)])


def bare_rows() -> list[SettingRow]:
    """Return every setting with its default."""
    own = [*rows_of(Settings, None, {}), *rows_of(ServeSettings, None, {})]
    return _sorted([*own, *_node_rows(["--bare"], os.environ)])


def misspelt(rows: Iterable[SettingRow], environment: Mapping[str, str]) -> list[str]:
    """Return words on variables that are nearly a setting's and none."""
    known = [*(row.variable for row in rows), *OTHER_VARIABLES]
    strange = [name for name in environment if name.startswith(PREFIX) and name not in known]
    return [f"{name} is no setting{hint}" for name in sorted(strange) if (hint := near(name, known))]


def example(rows: Iterable[SettingRow]) -> str:
    """Return a settings file with every setting at its default, explained and commented out."""
    lines = ["# Settings of Sandhog. Take the mark from a line to set it; a variable SANDHOG_<KEY> wins over it."]
    for section, rows_there in _by_section(rows):
        lines += ["", f"# {SECTIONS[section]}", f"[{section}]"]
        for row in rows_there:
            lines += [f"# {line}" for line in _wrapped(f"{row.about} ({row.kind})")]
            lines.append(f"#{row.key} = {toml(row.default)}" if row.default is not None else f"#{row.key} =")
    return "\n".join(lines) + "\n"


def markdown(rows: Iterable[SettingRow]) -> str:
    """Return the page of all settings."""
    lines = [
        "# Settings",
        "",
        "Made from the program by `sandhog config --markdown`.",
        "",
        "A setting is a key in one TOML file or a variable: `places = 4` below `[worker]`, or `SANDHOG_PLACES=4`. The",
        "variable is the key in capitals after `SANDHOG_`, and wins over the file. Tables and lists in variables are",
        "JSON. The file is the one that `SANDHOG_CONFIG` names, else `$XDG_CONFIG_HOME/sandhog/config.toml`",
        "(`~/.config/sandhog/config.toml`), else `/etc/sandhog/config.toml`. Each process refuses to start when a",
        "setting of its own is wrong or unknown, and says which, where it stands and what it may be.",
        "",
        "```sh",
        "sandhog config                                # what holds now, and where each value comes from",
        "sandhog config --example > config.toml        # a file to begin with, every key explained",
        "```",
        "",
        "Secrets in the file make it one: keep it readable for its owner alone. `sandhog config` masks them.",
    ]
    for section, rows_there in _by_section(rows):
        lines += ["", f"## [{section}]", "", SECTIONS[section], "", "| key | what it is | value | default |"]
        lines.append("|---|---|---|---|")
        for row in rows_there:
            default = "" if row.default in (None, "", {}, []) else f"`{_shortened(toml(row.default))}`"
            about = row.about.replace("|", "\\|")
            lines.append(f"| `{row.key}` | {about} | {row.kind} | {default} |")
    lines += ["", "## Variables alone", "", "| variable | what it is |", "|---|---|"]
    lines += [f"| `{name}` | {about} |" for name, about in OTHER_VARIABLES.items()]
    return "\n".join(lines) + "\n"


def toml(value: JsonValue) -> str:
    """Return a value as TOML has it, tables in one line."""
    if isinstance(value, dict):
        inner = ", ".join(f"{json.dumps(key)} = {toml(one)}" for key, one in value.items())
        return f"{{{inner}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"


def _by_section(rows: Iterable[SettingRow]) -> Iterator[tuple[str, list[SettingRow]]]:
    found = list(rows)
    for section in SECTIONS:
        yield section, [row for row in found if row.section == section]


def _sorted(rows: Iterable[SettingRow]) -> list[SettingRow]:
    """Return each setting once: what a node has for itself is told by the node, all else by the coordinator."""
    kept: dict[str, SettingRow] = {}
    for row in rows:
        if row.key not in kept or row.section == "worker":
            kept[row.key] = row
    return [row for _, there in _by_section(kept.values()) for row in there]


def _node_rows(arguments: list[str], environment: Mapping[str, str]) -> list[SettingRow]:
    argv = [sys.executable, "-P", "-m", "worker", "config", *arguments]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, env=environment, timeout=NODE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise ConfigError(f"`python -m worker config` said nothing within {NODE_TIMEOUT_S} s: try again.") from exc
    if done.returncode != 0:
        words = done.stderr.strip().rpartition("sandhog worker: ")[2]
        raise ConfigError(f"A setting is wrong: {words}")
    return ROWS.validate_json(done.stdout)


def _wrapped(text: str) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, line]
