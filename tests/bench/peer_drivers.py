"""What the interpreter of the peers runs, one text each: they are no dependency of ours.

Each text is run with an image's name as its argument, gets itself a box of its own kind, says on its standard output
that it is ready, then does what each line of its standard input names and answers with the seconds that it took.
"""

COMMAND = "true"
FILE = "/tmp/small"
FILE_BYTES = 1024
MAKE_FILE = f"head -c {FILE_BYTES} /dev/zero | tr '\\0' x > {FILE}"

_SERVE = f"""
import importlib.metadata, json, os, sys, time
IMAGE, COMMAND, FILE, MAKE_FILE = sys.argv[1], {COMMAND!r}, {FILE!r}, {MAKE_FILE!r}
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

def serve(package, ways):
    said = dict(package=package, version=importlib.metadata.version(package), ways=list(ways))
    print(json.dumps(said), file=ANSWERS, flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        ended = ways[line.strip()]()
        took = time.perf_counter() - began
        assert ended, line
        print(took, file=ANSWERS, flush=True)
"""

DOCKER_SDK = (
    _SERVE
    + f"""
import docker
client = docker.from_env()
box = client.containers.run(IMAGE, ["sleep", "3600"], detach=True, network_mode="none", init=True, remove=True)

def run(command):
    return box.exec_run(["bash", "-c", command])

try:
    assert run(MAKE_FILE).exit_code == 0
    serve("docker", {{
        "command": lambda: run(COMMAND).exit_code == 0,
        "read": lambda: len(run("cat " + FILE).output) == {FILE_BYTES},
    }})
finally:
    box.remove(force=True)
"""
)

MINI_SWE_AGENT = (
    _SERVE
    + f"""
import subprocess
os.environ["MSWEA_SILENT_STARTUP"] = "1"
from minisweagent.environments.docker import DockerEnvironment
box = DockerEnvironment(image=IMAGE, cwd="/tmp", run_args=["--rm", "--init", "--network", "none"])
try:
    assert box.execute(dict(command=MAKE_FILE))["returncode"] == 0
    serve("mini-swe-agent", {{
        "command": lambda: box.execute(dict(command=COMMAND))["returncode"] == 0,
        "read": lambda: len(box.execute(dict(command="cat " + FILE))["output"]) == {FILE_BYTES},
    }})
finally:
    subprocess.run(["docker", "rm", "-f", box.container_id], stdout=subprocess.DEVNULL)
    box.container_id = None
"""
)

SWE_REX = (
    _SERVE
    + f"""
import asyncio, pathlib, tempfile
import swerex
from swerex.deployment.docker import DockerDeployment
from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest, ReadFileRequest

# Its server runs inside: with these packages, so the image's python must be of the same version as this one.
site = pathlib.Path(swerex.__file__).resolve().parents[1]
programs = tempfile.TemporaryDirectory(prefix="hog-peers-")
program = pathlib.Path(programs.name, "swerex-remote")
program.write_text('#!/bin/sh\\nexec python3 -m swerex.server "$@"\\n')
program.chmod(0o755)
pathlib.Path(programs.name).chmod(0o755)
arguments = ["--init", "-v", f"{{site}}:/opt/peer:ro", "-v", f"{{programs.name}}:/opt/bin:ro"]
arguments += ["-e", "PYTHONPATH=/opt/peer"]
arguments += ["-e", "PATH=/opt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
loop = asyncio.new_event_loop()
do = loop.run_until_complete
box = DockerDeployment(image=IMAGE, pull="never", docker_args=arguments, startup_timeout=60)
do(box.start())

def command():
    return do(box.runtime.execute(Command(command=["bash", "-c", COMMAND]))).exit_code == 0

def in_session(text):
    return do(box.runtime.run_in_session(BashAction(command=text))).exit_code == 0

try:
    do(box.runtime.create_session(CreateBashSessionRequest()))
    assert in_session(MAKE_FILE)
    serve("swe-rex", {{
        "command": command,
        "session": lambda: in_session(COMMAND),
        "read": lambda: len(do(box.runtime.read_file(ReadFileRequest(path=FILE))).content) == {FILE_BYTES},
    }})
finally:
    do(box.stop())
    programs.cleanup()
"""
)

DRIVERS = {"Docker SDK, exec_run": DOCKER_SDK, "mini-swe-agent": MINI_SWE_AGENT, "SWE-ReX": SWE_REX}

PLOT = """
import json, sys
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
rows, path = json.loads(sys.argv[1]), sys.argv[2]
figure, axes = plt.subplots(1, len(rows), figsize=(11, 3.2))
for ax, (title, bars) in zip(axes, rows.items()):
    names, values = list(bars)[::-1], list(bars.values())[::-1]
    colours = ["#c2571a" if name.startswith("Sandhog") else "#8a8f98" for name in names]
    drawn = ax.barh(names, values, color=colours)
    ax.bar_label(drawn, labels=["%s ms" % float("%.2g" % value) for value in values], padding=3, fontsize=8)
    ax.set_xscale("log")
    ax.set_xlim(min(values) / 2, max(values) * 6)
    ax.set_title(title, fontsize=10)
    ax.set_xlabel("milliseconds, median, logarithmic", fontsize=8)
    ax.tick_params(labelsize=8)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
figure.tight_layout()
figure.savefig(path, dpi=110)
"""
