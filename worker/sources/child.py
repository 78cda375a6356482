"""`python -m worker.sources.child`: one job on content that nobody vouches for, with no rights of the node's.

Reads the job from standard input, becomes a user that nothing else is, works in the job's directory, and says what came
of it on standard output.
"""

import codecs
import ctypes
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter

from worker.own_wire import own_uid
from worker.sources.git import GitFailed, fetch
from worker.sources.jobs import MIB, GitJob, Job, Said, UnpackJob
from worker.sources.unpack import ArchiveRefused, unpack

PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
SIGKILL = 9
UNPACK_MEMORY_BYTES = 1024 * MIB
PROCESSES = 256
codecs.lookup("cp437")
"""Names in zip archives; loaded while the interpreter's files can be read, which may lie in root's home."""


def main() -> None:
    """Do one job and end."""
    job: GitJob | UnpackJob = TypeAdapter(Job).validate_json(sys.stdin.buffer.read())
    try:
        _give_up_rights(job)
        said = _done(job)
    except GitFailed as exc:
        said = Said(error=str(exc), is_own_fault=exc.is_own_fault)
    except ArchiveRefused as exc:
        said = Said(error=str(exc), is_own_fault=True)
    except OSError as exc:
        said = Said(error=f"{exc.strerror or exc}")
    except MemoryError:
        said = Said(error="it needs too much memory", is_own_fault=True)
    sys.stdout.write(said.model_dump_json())
    sys.stdout.flush()


def _done(job: GitJob | UnpackJob) -> Said:
    tree = Path(job.directory) / "tree"
    tree.mkdir()
    if isinstance(job, GitJob):
        return fetch(job, tree)
    unpack(job.descriptor, tree, job.bounds, keeps_links=job.keeps_links)
    return Said()


def _give_up_rights(job: GitJob | UnpackJob) -> None:
    """Raises OSError where that is not possible."""
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, job.bounds.total_bytes)
    _limit(resource.RLIMIT_CPU, int(job.bounds.timeout_s) + 1)
    if isinstance(job, UnpackJob):
        _limit(resource.RLIMIT_AS, UNPACK_MEMORY_BYTES)
    os.umask(0o022)
    if job.has_own_user:
        uid = own_uid(os.getpid())
        # Counted by user.
        _limit(resource.RLIMIT_NPROC, PROCESSES)
        os.chown(job.directory, uid, uid)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    libc = ctypes.CDLL(None, use_errno=True)
    # After the change of user, which takes the first one back.
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.chdir(job.directory)


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    with suppress(ValueError):
        resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    main()
