"""Run by the interpreter that a guest folder is made from (`-I -S`): compiles what the guest needs of it.

Reads a request as JSON from standard input, writes what it found as JSON to standard output. Standard library only;
what it needs for itself is imported late, so that only what the guest needs has been imported when it looks.
"""

from __future__ import annotations

import json
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

ALWAYS = ("os", "io", "abc", "codecs", "encodings.utf_8", "encodings.ascii", "encodings.latin_1", "encodings.aliases")
BUILTINS = ("marshal", "_posixsubprocess", "_signal", "_socket", "select", "_queue")
OURS = ("__main__", "sandbox")
OPTIMIZE = 2
"""Without docstrings and assertions: the guest stays small."""


def main() -> None:
    """Import the guest, then compile every module that is there."""
    request = json.load(sys.stdin)
    sys.path.insert(0, request["package_root"])
    for name in (*ALWAYS, *BUILTINS, *request["guest_modules"]):
        __import__(name)
    # One that is None was kept out by name, and one that has another module's name stands in for it.
    modules = {
        name: module
        for name, module in sys.modules.items()
        if module and module.__name__ == name and name.partition(".")[0] not in OURS
    }
    json.dump(collect(request, modules), sys.stdout)


def collect(request: dict[str, Any], modules: dict[str, ModuleType]) -> dict[str, Any]:
    """Compile the modules into the folder; the loader and the extension modules of this interpreter."""
    import _imp
    import shutil
    import sysconfig
    from pathlib import Path

    stdlib = Path(sysconfig.get_path("stdlib"))
    folder = Path(request["folder"])
    target = folder / sys.platlibdir / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    dynload = target / "lib-dynload"
    dynload.mkdir(parents=True)
    extensions = []
    for name, module in modules.items():
        # The interpreter has these within itself; by `os` it finds its library.
        if name != "os" and _imp.is_frozen(name):
            continue
        file = getattr(module, "__file__", None) or ""
        base = stdlib.joinpath(*name.split("."))
        sources = (base.with_name(base.name + ".py"), base / "__init__.py")
        source = next((path for path in sources if path.exists()), None)
        if source is not None:
            place = source.relative_to(stdlib)
            put(source, target / place, str(place))
        elif file.endswith(".so"):
            shutil.copy(file, dynload)
            extensions.append(file)
    for place_text, source_text in request["files"].items():
        put(Path(source_text), target / place_text, place_text)
    for name, source_text in request["scripts"].items():
        put(Path(source_text), folder / name, name)
    return {"loader": find_loader(), "extensions": extensions}


def put(source: Any, place: Any, shown: str) -> None:
    """Compile one module; the time of its source does not matter later."""
    import py_compile

    place.parent.mkdir(parents=True, exist_ok=True)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(source), str(place) + "c", shown, doraise=True, optimize=OPTIMIZE, invalidation_mode=mode)


def find_loader() -> str:
    """The dynamic loader that runs this process."""
    from pathlib import Path

    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    for path in sorted({line.split(maxsplit=5)[5] for line in lines if "/" in line}):
        if path.rpartition("/")[2].startswith("ld-linux"):
            return path
    sys.exit("this interpreter has no glibc loader (ld-linux): take one that is linked dynamically against glibc")


if __name__ == "__main__":
    main()
