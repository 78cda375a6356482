"""Your own tools, found: entry points and files → **LoadedTools** → registry of coordinator and node.

Both load the same sources; the digest tells whether they did. A file stands alone: it may import what is installed,
not its neighbours.
"""

import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tools.base import AnyTool, Tool
from tools.own import NAME
from tools.registry import Registry, builtin_registry
from tools.schema import function_schema

GROUP = "sandhog.tools"
"""Entry point group of packages that bring tools."""


class ToolsUnusable(Exception):
    """Tools cannot be loaded; the message names where they come from and what to change."""


@dataclass(frozen=True)
class LoadedTools:
    """The built-in tools and your own."""

    registry: Registry
    own: tuple[str, ...]
    """Names of your own, sorted."""
    digest: str
    """Hash of your own tools' sources and schemas; "" when there are none."""
    files: tuple[str, ...]
    """Absolute paths of the files that were loaded."""


@dataclass(frozen=True)
class _Source:
    name: str
    tools: tuple[AnyTool, ...]
    content: bytes


def load_tools(paths: Sequence[str | Path] = ()) -> LoadedTools:
    """Return the built-in tools, those of installed packages and those of the given files.

    Args:
        paths: Python files, or directories whose `*.py` files (without a leading underscore) are taken in order.

    Raises:
        ToolsUnusable: a source is missing, fails to load, holds no tool, or a name is taken.
    """
    files = [file for path in paths for file in _files(Path(path).expanduser().absolute())]
    sources = [*_from_packages(), *(_from_file(file) for file in dict.fromkeys(files))]
    builtin = builtin_registry()
    taken = {name: "the built-in tools" for name in builtin.names()}
    for source in sources:
        for tool in source.tools:
            if tool.name in taken:
                raise ToolsUnusable(f"{source.name}: the name {tool.name!r} is taken by {taken[tool.name]}")
            taken[tool.name] = source.name
    own = [tool for source in sources for tool in source.tools]
    return LoadedTools(
        registry=Registry([*builtin.tools(), *own]),
        own=tuple(sorted(tool.name for tool in own)),
        digest=_digest(sources),
        files=tuple(str(file) for file in dict.fromkeys(files)),
    )


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.glob("*.py") if not file.name.startswith("_"))
    if not path.is_file():
        raise ToolsUnusable(f"{path}: there is no such file")
    if ":" in str(path):
        raise ToolsUnusable(f"{path}: a colon in the path parts it in SANDHOG_TOOLS; move the file")
    return [path]


def _from_packages() -> Iterator[_Source]:
    for entry in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        name = f"entry point {entry.name} ({entry.value})"
        try:
            found = entry.load()
        except (Exception, SystemExit) as exc:
            raise ToolsUnusable(f"{name}: {_words(exc)}") from exc
        module = found if isinstance(found, ModuleType) else inspect.getmodule(found)
        # A tool object's class knows its module, a list does not.
        module = module or sys.modules.get(entry.module)
        version = entry.dist.version if entry.dist is not None else ""
        yield _Source(name, _tools_of(found, name), version.encode() + _module_source(module))


def _module_source(module: ModuleType | None) -> bytes:
    file = getattr(module, "__file__", None)
    return Path(file).read_bytes() if file and Path(file).is_file() else b""


def _from_file(path: Path) -> _Source:
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise ToolsUnusable(f"{path} cannot be read: {exc.strerror}") from exc
    name = f"sandhog_tools_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_loader(name, loader=None, origin=str(path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    # Type hints and dataclasses look their module up by its name.
    sys.modules[name] = module
    try:
        # What is run is what is hashed, and no bytecode is left beside the file.
        exec(compile(content, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as exc:
        del sys.modules[name]
        raise ToolsUnusable(f"{path}: {_words(exc)}{_line_of(exc, path)}") from exc
    return _Source(str(path), _tools_of(module, str(path)), content)


def _tools_of(found: object, name: str) -> tuple[AnyTool, ...]:
    """Return the tools that an object is or holds: a tool, a Tool class, a list of both, or a module's own."""
    if isinstance(found, ModuleType):
        own = [value for value in vars(found).values() if _is_own(value, found)]
        found = getattr(found, "TOOLS", own)
    candidates = found if isinstance(found, Iterable) else [found]
    tools = tuple(_checked(candidate, name) for candidate in candidates)
    if not tools:
        raise ToolsUnusable(f"{name}: it holds no tool: decorate a function with @tool or define a Tool class")
    return tools


def _is_own(value: object, module: ModuleType) -> bool:
    if isinstance(value, Tool):
        return True
    is_class = isinstance(value, type) and issubclass(value, Tool) and not inspect.isabstract(value)
    return is_class and value.__module__ == module.__name__


def _checked(candidate: object, name: str) -> AnyTool:
    """Return a candidate as a tool whose declaration holds."""
    try:
        tool = candidate() if isinstance(candidate, type) else candidate
        if not isinstance(tool, Tool):
            raise ToolsUnusable(f"{name}: {candidate!r:.80} is no tool: use @tool, bare(…) or a Tool class")
        if not isinstance(tool.name, str) or not NAME.fullmatch(tool.name):
            raise ToolsUnusable(f"{name}: {tool.name!r:.80}: a name is 1 to 64 letters, digits, _ and -")
        if not tool.description:
            raise ToolsUnusable(f"{name}: {tool.name}: it has no description")
        if tool.runs_on not in {"box", "worker"}:
            raise ToolsUnusable(f"{name}: {tool.name}: runs_on is box or worker, not {tool.runs_on!r}")
        function_schema(tool)
    except ToolsUnusable:
        raise
    except Exception as exc:
        raise ToolsUnusable(f"{name}: {candidate!r:.80} cannot be used: {_words(exc)}") from exc
    return tool


def _digest(sources: Sequence[_Source]) -> str:
    if not sources:
        return ""
    digest = hashlib.sha256()
    for source in sources:
        schemas = [function_schema(tool) for tool in source.tools]
        for part in (source.content, json.dumps(schemas, sort_keys=True).encode()):
            digest.update(len(part).to_bytes(8) + part)
    return digest.hexdigest()


def _words(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}"


def _line_of(exc: BaseException, path: Path) -> str:
    """Return where in the file it was raised, "" when that is not known."""
    lines = []
    trace = exc.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return f" (line {lines[-1]})" if lines else ""
