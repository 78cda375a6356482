"""Where every process has its settings from: `SANDHOG_*` variables, else one TOML file in sections, else the default.

A key of the file is its variable's name in small letters without `SANDHOG_`, in whichever section it stands. Each
process reads the sections of its own and refuses what it does not know in them; a section that only another process
knows is that one's to judge.
"""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit, urlunsplit

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

PREFIX = "SANDHOG_"
FILE_VARIABLE = "SANDHOG_CONFIG"
SYSTEM_FILE = Path("/etc/sandhog/config.toml")
SECTIONS = {
    "cluster": "What all processes of an installation share.",
    "session": "What sessions get where a command or a request says nothing else.",
    "endpoint": "The model's endpoint, and how patiently it is asked.",
    "limits": "How much text models are shown, and what is known of their windows and prices.",
    "serve": "The HTTP API and its page: `sandhog serve`.",
    "worker": "A node: its places, boxes, images and networks.",
    "retention": "How long things are kept, and how much of them; see `sandhog gc`.",
}
"""Every section, with what it is for."""
MOST_SHOWN = 80
MASK = "********"


@dataclass(frozen=True)
class In:
    """Marks a field that stands in another section than its class's first."""

    section: str


@dataclass(frozen=True)
class Hidden:
    """Marks a field whose value may hold a secret: no message tells it."""


@dataclass(frozen=True)
class NotInFile:
    """Marks a field that one process sets for another; nobody writes it into a file."""


class SettingsWrong(Exception):
    """A setting or the file cannot be used; the message names key, value, place and what to do."""


class FileSettings(BaseSettings):
    """Settings that a file may hold too."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", use_attribute_docstrings=True)

    sections: ClassVar[tuple[str, ...]] = ()
    """The sections all of whose keys this class knows; unmarked fields stand in the first."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources, the one that wins first."""
        return init_settings, env_settings, _FileSource(settings_cls)


class _FileSource(PydanticBaseSettingsSource):
    """Gives what the settings file says and no variable."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return nothing: all fields are read at once."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """Return the file's values by field.

        Raises:
            SettingsWrong: the file cannot be read, or has a key that nobody knows.
        """
        assert issubclass(self.settings_cls, FileSettings)
        found = file_values(self.settings_cls, os.environ)
        # A table of the file is not mixed with a variable's: whoever sets the variable says all of it.
        return {name: value for name, value in found.items() if name not in self.current_state}


Model = TypeVar("Model", bound=FileSettings)


def read(model: type[Model]) -> Model:
    """Return the settings as variables and file have them.

    Raises:
        SettingsWrong: one is wrong, or the file cannot be read.
    """
    try:
        return model()
    except SettingsError as exc:
        field = re.search(r'field "(\w+)"', str(exc))
        raise SettingsWrong(f"{variable_of(field[1]) if field else exc}: its value must be JSON.") from exc
    except ValidationError as exc:
        raise SettingsWrong("; ".join(_faults(model, exc))) from exc


def settings_file(environment: Mapping[str, str]) -> Path | None:
    """Return the settings file; None where there is none.

    Raises:
        SettingsWrong: SANDHOG_CONFIG names a file that is not there.
    """
    named = environment.get(FILE_VARIABLE)
    if named is not None:
        # Empty: none shall be read, also where one lies at a usual place.
        path = Path(named).expanduser()
        if named and not _is_file(path):
            raise SettingsWrong(f"{FILE_VARIABLE}: there is no file {named}. Write it, or unset the variable.")
        return path.absolute() if named else None
    home = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    for path in (Path(home) / "sandhog" / "config.toml", SYSTEM_FILE):
        if _is_file(path):
            return path
    return None


def file_values(model: type[FileSettings], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what the settings file says of a model's fields.

    Raises:
        SettingsWrong: it cannot be read, or has a section or key that nobody knows.
    """
    path = settings_file(environment)
    if path is None:
        return {}
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise SettingsWrong(f"The settings file {path} cannot be read: {exc.strerror}.") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise SettingsWrong(f"The settings file {path} is not TOML: {exc}.") from exc
    unknown = list(_unknown(model, tables))
    if unknown:
        raise SettingsWrong(f"The settings file {path}: {'; '.join(unknown)}.")
    found = {}
    for name, field in model.model_fields.items():
        section = section_of(model, field)
        if section is not None and name in tables.get(section, {}):
            found[name] = _fitting(tables[section][name], field)
    return found


def section_of(model: type[FileSettings], field: FieldInfo) -> str | None:
    """Return the section that a field stands in; None for one that no file has."""
    if any(isinstance(mark, NotInFile) for mark in field.metadata):
        return None
    marked = [mark.section for mark in field.metadata if isinstance(mark, In)]
    return marked[0] if marked else model.sections[0]


def variable_of(name: str) -> str:
    """Return the variable of a field."""
    return f"{PREFIX}{name.upper()}"


def is_set(name: str, environment: Mapping[str, str]) -> bool:
    """Return whether a field's variable is set; its letters may be small, too."""
    return any(one.upper() == variable_of(name) for one in environment)


def is_hidden(field: FieldInfo) -> bool:
    """Return whether a field's value may hold a secret."""
    return any(isinstance(mark, Hidden) for mark in field.metadata)


def password_of(text: str) -> str | None:
    """Return the password in a URL; None where there is none."""
    try:
        return urlsplit(text).password
    except ValueError:
        return None


def without_password(text: str) -> str:
    """Return a text in which a URL's password is masked."""
    try:
        parts = urlsplit(text)
        if parts.password is None:
            return text
    except ValueError:
        return MASK
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:{MASK}@{host}"))


def near(word: str, known: Iterator[str] | list[str]) -> str:
    """Return a hint at a known word that is nearly this one, else an empty text."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f" (did you mean {close[0]}?)" if close else ""


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # A place that this user may not look at has nothing for them.
        return False


def _unknown(model: type[FileSettings], tables: Mapping[str, Any]) -> Iterator[str]:
    homes: dict[str, list[str]] = {section: [] for section in model.sections}
    for name, field in model.model_fields.items():
        section = section_of(model, field)
        if section in homes:
            homes[section].append(name)
    for section, table in tables.items():
        if section not in SECTIONS:
            yield f"there is no section [{section}]{near(section, list(SECTIONS))}; {', '.join(SECTIONS)} there are"
        elif not isinstance(table, dict):
            yield f"{section} is a section: write [{section}] and its keys below"
        elif section in homes:
            for key in table:
                if key not in homes[section]:
                    elsewhere = [other for other, names in homes.items() if key in names]
                    hint = f" (it stands in [{elsewhere[0]}])" if elsewhere else near(key, homes[section])
                    yield f"[{section}] has no key {key}{hint}"


def _fitting(value: Any, field: FieldInfo) -> Any:
    """Return a value as its variable would have it: lists of paths with `:` between them, tables as JSON."""
    if field.annotation is str and isinstance(value, list):
        return ":".join(str(one) for one in value)
    if field.annotation is str and isinstance(value, dict):
        return json.dumps(value)
    return value


def _faults(model: type[FileSettings], error: ValidationError) -> Iterator[str]:
    for fault in error.errors(include_url=False, include_context=False):
        name = str(fault["loc"][0])
        field = model.model_fields[name]
        inner = "".join(f".{part}" for part in fault["loc"][1:])
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "missing" and not inner:
            where = f"{name} in section [{section_of(model, field)}] of the settings file"
            yield f"{variable_of(name)} is not set: set it, or {where}"
            continue
        place = variable_of(name)
        if not is_set(name, os.environ):
            place = f"{name} in section [{section_of(model, field)}] of {settings_file(os.environ)}"
        shown = "" if is_hidden(field) else f" (it is {_shown(fault['input'])})"
        yield f"{place}{inner and f', {inner[1:]}'}: {message}{shown}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"
