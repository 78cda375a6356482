"""The known ways out of a container, each tried from inside: see docs/isolation.md.

Each runs as the agent, as root without capabilities, and on gVisor.
"""

import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.box import Box
from sandbox.controls import ROOT_CAPABILITIES
from sandbox.requests import CallMark, ReadRequest, RunAnswer

pytestmark = pytest.mark.docker

Run = Callable[..., RunAnswer]
Python = Callable[..., list[str]]


@pytest.fixture
def python(run: Run) -> Python:
    """Runs a program in the box; the lines it printed."""

    def run_python(program: str) -> list[str]:
        answer = run(f"python3 - <<'END'\n{program}\nEND")
        assert answer.exit_code == 0, answer.stderr.text()
        return answer.stdout.text().splitlines()

    return run_python


@pytest.fixture
def is_gvisor(box: Box) -> bool:
    return box.info.facts["kernel"] == "4.4.0"


def test_no_capabilities_that_matter_and_none_to_be_had(python: Python, box: Box) -> None:
    program = "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('CapEff')][0])"
    held = int(python(program)[0], 16)
    assert held & ~(ROOT_CAPABILITIES if box.info.uid == 0 else 0) == 0
    program = "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('CapBnd')][0])"
    assert int(python(program)[0], 16) & ~ROOT_CAPABILITIES == 0


def test_it_is_not_privileged(run: Run) -> None:
    for command in ("mount -t tmpfs none /mnt", "mount -o remount,rw /opt/sandhog", "umount /proc", "chroot / true"):
        assert run(command).exit_code != 0, command


def test_no_socket_of_an_engine_nor_of_anything_else_on_the_host(run: Run) -> None:
    answer = run("find / -xdev -type s -not -path '/proc/*' -not -path '/workspace/*' 2>/dev/null; true")
    assert answer.stdout.text().split() in ([], ["/run/sandhog/guest.sock"])
    assert run("ls /run/docker.sock /var/run/docker.sock /run/containerd /run/podman").exit_code != 0
    assert run("cat < /dev/tcp/127.0.0.1/2375").exit_code != 0


def test_only_our_own_mounts_from_the_host(python: Python) -> None:
    points = python("for line in open('/proc/self/mounts'): print(line.split()[1])")
    known = {
        "/", "/dev", "/dev/mqueue", "/dev/pts", "/dev/shm", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf",
        "/home/agent", "/opt/sandhog", "/proc", "/run/sandhog", "/run/sandhog/door", "/sbin/docker-init", "/spill",
        "/sys", "/tmp", "/usr/sbin/docker-init", "/workspace",
    }  # fmt: skip
    inside = ("/proc/", "/sys/")
    assert [point for point in points if point not in known and not point.startswith(inside)] == []


@pytest.mark.parametrize("kind", ["pid", "net", "ipc", "uts", "mnt"])
def test_no_namespace_is_the_hosts(python: Python, kind: str, is_gvisor: bool) -> None:
    if is_gvisor:
        # Another kernel: its numbers say nothing about the host's.
        assert python("import os; print(os.uname().release)") == ["4.4.0"]
        return
    hosts = str(Path(f"/proc/self/ns/{kind}").readlink())
    assert python(f"import os; print(os.readlink('/proc/self/ns/{kind}'))") != [hosts]


def test_processes_of_the_host_are_not_seen(python: Python) -> None:
    names = python(
        "import os\n"
        "for pid in os.listdir('/proc'):\n"
        "    if pid.isdigit(): print(open(f'/proc/{pid}/comm').read().strip())"
    )
    assert "dockerd" not in names
    assert "pytest" not in " ".join(names)


def test_no_device_but_the_harmless_ones(python: Python, run: Run) -> None:
    program = (
        "import os, stat\n"
        "for folder, _, names in os.walk('/dev'):\n"
        "    for name in names:\n"
        "        mode = os.lstat(os.path.join(folder, name)).st_mode\n"
        "        if stat.S_ISBLK(mode) or stat.S_ISCHR(mode): print(name)"
    )
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
    devices = [name for name in python(program) if not name.isdigit()]
    assert set(devices) <= harmless
    for command in ("mknod disk b 8 0", "mknod memory c 1 1", "cat /dev/mem", "cat /dev/kmsg"):
        assert run(command).exit_code != 0, command


def test_no_descriptor_is_left_open_in_a_command(python: Python) -> None:
    program = (
        "import os\n"
        "for fd in os.listdir('/proc/self/fd'):\n"
        "    try: print(fd, os.readlink(f'/proc/self/fd/{fd}'))\n"
        "    except FileNotFoundError: pass"
    )
    # Input (here the program's text), output, errors, the report of the directory, and the listing itself.
    for line in python(program):
        fd, target = line.split(maxsplit=1)
        allowed = ("pipe:", "/proc/", "/dev/null", "/tmp/", "host:")
        assert int(fd) in (0, 1, 2, 3, 9), line
        assert target.startswith(allowed), line


def test_control_groups_cannot_be_changed(run: Run, python: Python) -> None:
    program = (
        "import os\n"
        "for folder, _, names in os.walk('/sys/fs/cgroup'):\n"
        "    for name in names:\n"
        "        try: os.close(os.open(os.path.join(folder, name), os.O_WRONLY)); print(folder, name)\n"
        "        except OSError: pass"
    )
    assert python(program) == []
    assert run("mkdir /sys/fs/cgroup/x /sys/fs/cgroup/memory/x").exit_code != 0
    assert run("mkdir c; mount -t cgroup -o memory none c").exit_code != 0
    assert run("mkdir c2; mount -t cgroup2 none c2").exit_code != 0


@pytest.mark.parametrize(
    "path",
    [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/kernel/hotplug",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/fs/binfmt_misc/register",
        "/proc/sys/kernel/hostname",
        "/proc/sysrq-trigger",
        "/proc/irq/default_smp_affinity",
        "/sys/kernel/uevent_helper",
        "/sys/kernel/security/x",
        "/sys/fs/cgroup/release_agent",
        "/sys/fs/cgroup/memory/release_agent",
        "/sys/power/state",
    ],
)
def test_settings_of_the_kernel_cannot_be_written(run: Run, path: str) -> None:
    assert run(f"echo x > {path}").exit_code != 0


@pytest.mark.parametrize(
    "path", ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/latency_stats", "/proc/acpi"]
)
def test_what_the_kernel_says_of_the_host_is_not_read(run: Run, path: str) -> None:
    answer = run(f"head -c 64 {path}")
    assert answer.stdout.head == b""


def test_addresses_of_the_kernel_are_not_shown(run: Run) -> None:
    answer = run("awk '$1 !~ /^0+$/ {print; exit}' /proc/kallsyms")
    assert answer.stdout.head == b""
    assert run("ls -A /sys/firmware").stdout.head == b""


DENIED_CALLS = {
    "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321, "perf_event_open": 298, "kexec_load": 246,
    "init_module": 175, "finit_module": 313, "open_by_handle_at": 304, "userfaultfd": 323, "mount": 165,
    "pivot_root": 155, "setns": 308, "reboot": 169, "swapon": 167, "settimeofday": 164, "iopl": 172,
    "quotactl": 179, "fsopen": 430, "move_mount": 429, "process_vm_writev": 311,
}  # fmt: skip
"""Numbers of x86-64."""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls are those of x86-64")
def test_dangerous_system_calls_are_refused(python: Python) -> None:
    program = (
        "import ctypes\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"for name, number in {DENIED_CALLS!r}.items():\n"
        "    result = libc.syscall(number, 1, 0, 0, 0, 0, 0)\n"
        "    print(name, result, ctypes.get_errno())"
    )
    refused = {"1", "38"}
    # What is let through fails on the arguments or the rights: none of them may succeed.
    lines = [line.split() for line in python(program)]
    assert [name for name, result, _ in lines if result != "-1"] == []
    strict = {
        "add_key",
        "request_key",
        "keyctl",
        "bpf",
        "kexec_load",
        "init_module",
        "mount",
        "reboot",
        "swapon",
        "setns",
    }
    assert [name for name, _, number in lines if name in strict and number not in refused] == []


def test_no_namespace_of_users_can_be_made(run: Run) -> None:
    for flags in ("-U", "-Ur", "-m", "-n", "-p -f", "-C", "-i"):
        assert run(f"unshare {flags} true").exit_code != 0, flags


def test_no_raw_packets(python: Python) -> None:
    program = (
        "import socket\n"
        "for family, kind in ((socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_INET, socket.SOCK_RAW)):\n"
        "    try: socket.socket(family, kind, 1); print('opened')\n"
        "    except OSError: pass"
    )
    assert python(program) == []


def test_what_the_engine_executes_as_root_cannot_be_replaced(run: Run) -> None:
    for path in ("/opt/sandhog/bin/ld.so", "/opt/sandhog/bin/python3", "/opt/sandhog/relay.pyc", "/spill/x"):
        assert run(f"echo x > {path}").exit_code != 0, path
    assert run("mv /opt/sandhog /opt/other").exit_code != 0


def test_a_link_out_of_the_workspace_leads_to_the_box_not_to_the_host(box: Box, run: Run) -> None:
    run("ln -s /etc/hostname out")
    answer = box.read(ReadRequest(CallMark("read-out", "d", "s", 1, 0), "out"))
    assert answer.text == b"box\n"
