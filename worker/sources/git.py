"""Fetches one commit with git, in a confined child: no configuration but ours, one protocol, one address.

Git never sees a configuration that somebody else wrote: the repository is made empty here, and neither the machine's
nor a user's files are read. So there are no hooks, filters, helpers or other commands for it to run.
"""

import base64
import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from worker.sources.jobs import Bounds, GitJob, Said

TAIL_CHARS = 600
COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
ABBREVIATED = re.compile(r"[0-9a-f]{7,64}")
_SETTINGS = {
    "advice.detachedHead": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "core.symlinks": "true",
    "fetch.recurseSubmodules": "false",
    "gc.auto": "0",
    "http.followRedirects": "false",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
    "init.defaultBranch": "main",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "submodule.recurse": "false",
    "transfer.bundleURI": "false",
}


AS_COMMITTED = "* -text -ident -filter !working-tree-encoding\n"
"""Beats whatever a commit's own `.gitattributes` say. Files are as the commit has them, to the byte: what is compared
with them is then a patch that `git apply` takes in any clone, which converts its own files back before it looks.

Source: gitattributes(5); `working-tree-encoding` can only be unspecified, git takes no other word against it.
"""
TOO_LARGE = "(SANDHOG_SOURCE_MIB)"
_OWN_FAULT = re.compile(
    r"repository .*not found|find remote ref|not our ref|unadvertised object|expected commit type|single revision"
    r"|does not appear to be a git repository|Authentication failed|could not read Username|could not read Password"
    r"|returned error: (?:30.|40[0134])|Unable to find [0-9a-f]+ under|Permission denied \(|" + re.escape(TOO_LARGE)
)


class GitFailed(Exception):
    """The commit cannot be had; the message says why, in git's own words where it has some."""

    @property
    def is_own_fault(self) -> bool:
        """The repository or the commit is not there, not open to us or too large; else something was in the way."""
        return _OWN_FAULT.search(str(self)) is not None


@dataclass(frozen=True)
class _Git:
    """Git in one directory, as this job may use it."""

    tree: Path
    environment: Mapping[str, str]
    secrets: Sequence[str]

    def __call__(self, *arguments: str) -> str:
        done = self._run(arguments)
        if done.returncode != 0:
            raise GitFailed(self._words(done.stderr))
        return done.stdout.decode("utf-8", "surrogateescape")

    def succeeds(self, *arguments: str) -> str:
        """Return "" when it did, else git's words."""
        done = self._run(arguments)
        return "" if done.returncode == 0 else self._words(done.stderr)

    def _run(self, arguments: Sequence[str]) -> "subprocess.CompletedProcess[bytes]":
        try:
            return subprocess.run(
                ["git", *arguments],
                cwd=self.tree,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
        except FileNotFoundError as exc:
            raise GitFailed("git is not installed on this node") from exc

    def _words(self, said: bytes) -> str:
        text = said.decode("utf-8", "replace")
        for secret in self.secrets:
            text = text.replace(secret, "[redacted]")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " ".join(lines)[-TAIL_CHARS:] or "git failed without a word"


def fetch(job: GitJob, tree: Path) -> Said:
    """Fetch the job's commit into an empty directory, with a `.git` that holds no address of ours.

    Raises:
        GitFailed: it cannot be had.
    """
    git = _Git(tree, _environment(job, tree.parent), _secrets(job))
    git("init", "-q", "--template=", ".")
    (tree / ".git" / "info").mkdir(exist_ok=True)
    # It stays: git in the box must not take for changed what was never converted.
    (tree / ".git" / "info" / "attributes").write_text(AS_COMMITTED)
    _fetch(git, job)
    commit = git("rev-parse", "--verify", "--end-of-options", "FETCH_HEAD^{commit}").strip()
    submodules = _look(git, commit, job.bounds)
    git("checkout", "-q", "--detach", commit)
    git("remote", "add", "origin", job.url)
    (tree / ".git" / "FETCH_HEAD").unlink(missing_ok=True)
    return Said(commit=commit, submodules=_with_urls(git, tree, submodules))


def _fetch(git: _Git, job: GitJob) -> None:
    """Get the ref's commit as FETCH_HEAD: alone where the server can do that, else with its history."""
    plain = ("fetch", "-q", "--no-tags", "--no-write-commit-graph")
    why = git.succeeds(*plain, "--depth", "1", "--", job.url, job.ref)
    if not why:
        return
    if "shallow" in why or "dumb http" in why:
        again = git.succeeds(*plain, "--", job.url, job.ref)
        if not again:
            return
        why = again
    if ABBREVIATED.fullmatch(job.ref) is None:
        raise GitFailed(why)
    # A server that hands out only what its branches and tags name, or a commit that is not written out.
    everything = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
    git("fetch", "-q", "--no-write-commit-graph", "--", job.url, *everything)
    is_missing = git.succeeds("rev-parse", "--verify", "-q", "--end-of-options", f"{job.ref}^{{commit}}")
    if is_missing:
        raise GitFailed(why)
    sha = git("rev-parse", "--verify", "--end-of-options", f"{job.ref}^{{commit}}").strip()
    (git.tree / ".git" / "FETCH_HEAD").write_text(f"{sha}\t\tcommit\n")


def _look(git: _Git, commit: str, bounds: Bounds) -> list[tuple[str, str]]:
    """Return path and commit of the submodules, once the tree is known to be within bounds.

    Raises:
        GitFailed: it is not.
    """
    total_bytes = entries = 0
    found = []
    for record in git("ls-tree", "-r", "-l", "-z", commit).split("\0"):
        if not record:
            continue
        facts, _, path = record.partition("\t")
        mode, kind, name, size = facts.split()
        entries += 1
        total_bytes += int(size) if size.isdigit() else 0
        if kind == "commit" and mode == "160000":
            found.append((path, name))
    if entries > bounds.entries or total_bytes > bounds.total_bytes:
        raise GitFailed(
            f"the commit has {entries} files of {total_bytes // 1024**2} MiB; at most {bounds.entries} of "
            f"{bounds.total_bytes // 1024**2} MiB are taken {TOO_LARGE}"
        )
    return found


def _with_urls(git: _Git, tree: Path, submodules: Sequence[tuple[str, str]]) -> tuple[tuple[str, str, str], ...]:
    if not submodules or not (tree / ".gitmodules").is_file() or (tree / ".gitmodules").is_symlink():
        return ()
    try:
        said = git("config", "--file", ".gitmodules", "--null", "--list")
    except GitFailed:
        # Whoever wants a submodule is told that it has no address; nobody else is asked to mend the file.
        said = ""
    paths, urls = {}, {}
    for record in said.split("\0"):
        name, _, value = record.partition("\n")
        if name.startswith("submodule.") and name.endswith(".path"):
            paths[value] = name.removesuffix(".path")
        elif name.startswith("submodule.") and name.endswith(".url"):
            urls[name.removesuffix(".url")] = value
    found = ((path, urls.get(paths.get(path, ""), ""), commit) for path, commit in submodules)
    # What is not UTF-8 is said otherwise, and lies nowhere.
    return tuple(
        (os.fsencode(path).decode(errors="replace"), os.fsencode(url).decode(errors="replace"), commit)
        for path, url, commit in found
    )


def _environment(job: GitJob, home: Path) -> dict[str, str]:
    passed = ("PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
    settings = {**_SETTINGS, f"protocol.{job.scheme}.allow": "always"}
    if job.resolve:
        settings["http.curloptResolve"] = job.resolve
    header = job.header.get_secret_value()
    if header:
        settings[f"http.{job.url}.extraHeader"] = header
    environment = {name: os.environ[name] for name in passed if name in os.environ}
    environment |= {
        "HOME": str(home),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "/bin/false",
        "GIT_PROTOCOL_FROM_USER": "0",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_CONFIG_COUNT": str(len(settings)),
    }
    if job.ca:
        environment["GIT_SSL_CAINFO"] = _kept(home / "ca.pem", job.ca)
    if job.ssh:
        environment["GIT_SSH_COMMAND"] = _ssh_command(job, home)
        environment["GIT_SSH_VARIANT"] = "ssh"
    for number, (name, value) in enumerate(settings.items()):
        environment[f"GIT_CONFIG_KEY_{number}"] = name
        environment[f"GIT_CONFIG_VALUE_{number}"] = value
    return environment


def _ssh_command(job: GitJob, home: Path) -> str:
    key = _kept(home / "key", job.ssh_key.get_secret_value().rstrip("\n") + "\n")
    known_hosts = _kept(home / "known_hosts", job.known_hosts)
    own = (f"-oUserKnownHostsFile={known_hosts}", "-oIdentitiesOnly=yes", "-i", key)
    return shlex.join([*job.ssh, *own])


def _kept(path: Path, content: str) -> str:
    """Write a file that is only for this child; return its path."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
    return str(path)


def _secrets(job: GitJob) -> list[str]:
    """Return what may not be shown, the longest first: a server may say again what it was sent, also decoded."""
    header = job.header.get_secret_value()
    sent = header.rpartition(" ")[2]
    proof = base64.b64decode(sent).decode("utf-8", "replace")
    return [part for part in (header, sent, proof, proof.partition(":")[2]) if part]
