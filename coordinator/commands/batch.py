"""`sandhog batch`: many tasks from a file, side by side, each in a workspace and a box of its own."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from coordinator.batch.requests import Defaults, Requests
from coordinator.batch.rows import MAX_SAMPLES
from coordinator.batch.run import TRIES, Plan
from coordinator.batch.tasks import REPO_BASE, TaskFile
from coordinator.batch.telling import Teller
from coordinator.commands import box_flags, model_flags, run_flags
from coordinator.commands.batch_run import Given, run_batch
from coordinator.commands.explain import rules_of
from coordinator.commands.one_session import own_tools
from coordinator.service.serve_settings import read_serve_settings
from coordinator.session.approvals import Always, Approver, Elsewhere, Never
from coordinator.session.limits import DEFAULT_STEPS, Limits
from coordinator.session.mcp_settings import read_mcp_config
from coordinator.session.model_table import read_model_table
from coordinator.settings import Settings, read_settings
from worker.contract.orders import Policy

app = typer.Typer(add_completion=False)


class Again(StrEnum):
    """Which finished runs are run again."""

    FAILED = "failed"
    INFRASTRUCTURE = "infrastructure"
    UNSOLVED = "unsolved"


class BatchApprove(StrEnum):
    """Who answers when a task's policy asks."""

    ALWAYS = "always"
    NEVER = "never"
    WAIT = "wait"


# As long as it has flags: each is a parameter with its help, and the body only puts them together.
@app.command()
def batch(
    tasks: Annotated[Path, typer.Argument(help="File with a task a line, as JSON: `id`, `prompt`, …; docs/batch.md.")],
    out: Annotated[Path, typer.Option(help="Directory of the results; a batch that was begun there goes on.")],
    concurrency: Annotated[int, typer.Option("--concurrency", "-j", min=1, max=1000, help="Tasks at once.")] = 4,
    retry: Annotated[
        Again | None,
        typer.Option(
            help="Run again what is finished: what failed, what was broken by something around it, or what was not "
            "solved."
        ),
    ] = None,
    tries: Annotated[
        int, typer.Option(min=1, max=10, help="Tries of a run that something around it breaks: no box, no endpoint, …")
    ] = TRIES,
    samples: Annotated[int, typer.Option(min=1, max=MAX_SAMPLES, help="Runs of each task.")] = 1,
    budget: Annotated[
        float | None, typer.Option(min=0.000001, help="US dollars that all tasks may cost; SANDHOG_MODELS_FILE.")
    ] = None,
    model: run_flags.Model = None,
    image: run_flags.Image = None,
    profile: run_flags.Profile = None,
    policy: run_flags.PolicyName = None,
    policy_file: run_flags.PolicyFile = None,
    approve: Annotated[BatchApprove, typer.Option(help="Who answers when the policy asks.")] = BatchApprove.NEVER,
    max_steps: run_flags.MaxSteps = DEFAULT_STEPS,
    max_calls: run_flags.MaxCalls = None,
    max_tokens_in: run_flags.MaxTokensIn = None,
    max_tokens_out: run_flags.MaxTokensOut = None,
    max_cost: run_flags.MaxCost = None,
    timeout: run_flags.MaxTime = None,
    tools: run_flags.Tools = None,
    system: model_flags.System = None,
    temperature: model_flags.Temperature = None,
    top_p: model_flags.TopP = None,
    max_tokens: model_flags.MaxTokens = None,
    reasoning_effort: model_flags.ReasoningEffort = None,
    seed: model_flags.Seed = None,
    extra_body: model_flags.ExtraBody = None,
    header: model_flags.Header = None,
    no_stream: model_flags.NoStream = False,
    keep: run_flags.Keep = False,
    setup: box_flags.Setup = None,
    allow_host: box_flags.AllowHost = None,
    env: box_flags.Env = None,
    env_file: box_flags.EnvFile = None,
    repo_base: Annotated[str, typer.Option(help="Before a repository that is only `owner/name`.")] = REPO_BASE,
    webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="Is told when the batch ends; signed by SANDHOG_WEBHOOK_SECRET.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object on stdout.")] = False,
) -> None:
    """Run many tasks, each in a workspace and a box of its own.

    Results go to OUT/results.jsonl, a line for each run that finished; the same command goes on where it was
    interrupted. Exit codes: 0 every task completed (whatever its check said), 1 one did not, 2 bad usage or tasks,
    130 interrupted.
    """
    settings = read_settings()
    own = own_tools([*settings.tool_paths, *(tools or ())])
    models = read_model_table(settings.models_file, settings.context_tokens)
    limits = Limits(
        steps=max_steps,
        calls=max_calls,
        tokens_in=max_tokens_in,
        tokens_out=max_tokens_out,
        cost_usd=max_cost,
        time_s=timeout,
    )
    requests = Requests(
        base=tasks.absolute().parent,
        defaults=Defaults(
            image=image or settings.image,
            profile=profile or settings.profile,
            policy=policy or Policy.BOXED,
            limits=limits,
            params=model_flags.model_parameters(
                system=system,
                temperature=temperature,
                top_p=top_p,
                max_tokens=max_tokens,
                reasoning_effort=reasoning_effort,
                seed=seed,
                extra_body=extra_body,
                header=header,
            ),
            setup=tuple(setup or ()),
            allow_hosts=tuple(allow_host or ()),
            env=tuple(env or ()),
            env_files=tuple(env_file or ()),
        ),
        settings=settings,
        registry=own.registry,
        rules=rules_of(policy_file or settings.policy_file, own.registry),
        models=models,
        environment=os.environ,
        tool_paths=tuple(os.fspath(path.absolute()) for path in tools or ()),
        mcp=read_mcp_config(settings.mcp_config, os.environ),
        keeps_copies=keep,
    )
    given = Given(
        tasks=TaskFile(tasks, samples=samples, repo_base=repo_base, look=requests.request),
        requests=requests,
        endpoint=model_flags.model_settings(settings, model, stream=not no_stream),
        tools=own,
        out=out,
        plan=Plan(concurrency, tries=tries, budget_usd=budget),
        approver=_approver(approve),
        retry=None if retry is None else retry.value,
        as_json=json,
        teller=None if webhook is None else _teller(webhook, settings),
    )
    raise typer.Exit(run_batch(given, settings))


def _teller(url: str, settings: Settings) -> Teller:
    secret = settings.webhook_secret
    return Teller(url, None if secret is None else secret.get_secret_value(), read_serve_settings().webhook_private)


def _approver(approve: BatchApprove) -> Approver:
    match approve:
        case BatchApprove.ALWAYS:
            return Always()
        case BatchApprove.WAIT:
            return Elsewhere()
        case BatchApprove.NEVER:
            return Never()
