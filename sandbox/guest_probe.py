"""Run by the interpreter that a guest folder is made from (`-I -S`): compiles what the guest needs of it.

Reads a request as JSON from standard input, writes what it found as JSON to standard output. Standard library only.
"""

import sys

ALWAYS = ("os", "io", "abc", "codecs", "encodings.utf_8", "encodings.ascii", "encodings.latin_1", "encodings.aliases")
BUILTINS = ("marshal", "_posixsubprocess", "_signal", "_socket", "select", "_queue")
OPTIMIZE = 2
"""Without docstrings and assertions: the guest stays small."""


def main() -> None:
    """Import the guest before anything else of ours, so that only what it needs is there to be collected."""
    import json

    request = json.load(sys.stdin)
    sys.path.insert(0, request["package_root"])
    for name in (*ALWAYS, *BUILTINS, *request["guest_modules"]):
        __import__(name)
    modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] not in OURS}
    json.dump(collect(request, modules), sys.stdout)


OURS = ("__main__", "sandbox")


def collect(request, modules):  # type: ignore[no-untyped-def]
    """Compile the modules into the folder; the loader and the extension modules of this interpreter."""
    import os
    import py_compile
    import shutil
    import sysconfig

    stdlib = sysconfig.get_path("stdlib")
    target = os.path.join(request["folder"], sys.platlibdir, f"python{sys.version_info[0]}.{sys.version_info[1]}")
    dynload = os.path.join(target, "lib-dynload")
    os.makedirs(dynload)

    def put(source: str, place: str, shown: str) -> None:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(source, place, shown, doraise=True, optimize=OPTIMIZE, invalidation_mode=mode)

    extensions = []
    for name, module in modules.items():
        file = getattr(module, "__file__", None) or ""
        base = os.path.join(stdlib, *name.split("."))
        source = next((path for path in (base + ".py", os.path.join(base, "__init__.py")) if os.path.exists(path)), "")
        if source:
            relative = os.path.relpath(source, stdlib) + "c"
            put(source, os.path.join(target, relative), relative)
        elif file.endswith(".so"):
            shutil.copy(file, dynload)
            extensions.append(file)
    for relative, source in request["files"].items():
        put(source, os.path.join(target, relative + "c"), relative)
    for name, source in request["scripts"].items():
        put(source, os.path.join(request["folder"], name + "c"), name)
    return {"loader": find_loader(), "extensions": extensions}


def find_loader() -> str:
    """The dynamic loader that runs this process."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if line.count("/")}
    for path in sorted(paths):
        if path.rpartition("/")[2].startswith("ld-linux"):
            return path
    sys.exit("this interpreter has no glibc loader (ld-linux): take one that is linked dynamically against glibc")


if __name__ == "__main__":
    main()
