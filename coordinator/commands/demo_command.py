"""`sandhog demo`: a session with a scripted model, all the rest real."""

import os
import sys
import tempfile
from pathlib import Path

import typer

from coordinator.commands import run_flags
from coordinator.commands.demo import DEMO_MODEL, DEMO_NOTICE, DEMO_PROMPT, copy_demo_project, demo_script
from coordinator.commands.one_session import Command, own_tools, run_command
from coordinator.commands.outcome import finish
from coordinator.commands.run_flags import Approve
from coordinator.endpoint.model import ModelSettings
from coordinator.endpoint.scripted import ScriptedEndpoint
from coordinator.session.limits import Limits
from coordinator.session.request import SessionRequest
from coordinator.session.workspace_choice import Chosen, Wanted, choose
from coordinator.settings import read_settings

app = typer.Typer(add_completion=False)


@app.command()
def demo(image: run_flags.Image = None, json: run_flags.Json = False) -> None:
    """Watch a scripted model mend a small project: the model is scripted, all the rest is real."""
    settings = read_settings()
    print(DEMO_NOTICE, file=sys.stderr)
    with (
        tempfile.TemporaryDirectory(prefix="sandhog-demo-") as fresh,
        ScriptedEndpoint(demo_script(), model=DEMO_MODEL) as endpoint,
    ):
        directory = copy_demo_project(Path(fresh) / "ledger-project")
        wanted = Wanted(directory, copy=True)
        chosen: Chosen = choose(wanted, owner_uid=directory.stat().st_uid, own_uid=os.geteuid())
        request = SessionRequest(
            prompt=DEMO_PROMPT, workspace=chosen, image=image or settings.image, limits=Limits(steps=10), apply=False
        )
        command = Command(
            request,
            ModelSettings(DEMO_MODEL, base_url=endpoint.base_url),
            Approve.NEVER.value,
            is_live=not json,
            tools=own_tools([]),
        )
        result = run_command(command, settings)
    finish(result, as_json=json, is_gone=True)
