"""Predictions as the harness of SWE-bench reads them: results → **predictions** → harness."""

import json
import os
from collections.abc import Set
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from coordinator.batch.lines import RESULTS, read_lines
from coordinator.errors import TranscriptError


def write_predictions(directory: Path, instances: Set[str]) -> list[str]:
    """Write what the results say of these tasks: `predictions.jsonl` for the first run of each, `predictions-N.jsonl`
    for the N-th. Each file is whole or as it was; one of an earlier run that has no rows any more is gone.

    Returns:
        The patches that are not UTF-8, and so not in it as they are.

    Raises:
        TranscriptError: they cannot be written.
        ConfigError: the results cannot be read.
    """
    files: dict[int, IO[bytes]] = {}
    mended: list[str] = []
    try:
        with ExitStack() as stack:
            files[1] = stack.enter_context(_part(directory, 1).open("wb"))
            for line in read_lines(directory / RESULTS):
                if line.id not in instances or line.error is not None or line.patch is None:
                    continue
                if line.sample not in files:
                    files[line.sample] = stack.enter_context(_part(directory, line.sample).open("wb"))
                content = (directory / line.patch).read_bytes()
                patch = content.decode(errors="replace")
                if patch.encode() != content:
                    mended.append(line.patch)
                fields = {"instance_id": line.id, "model_name_or_path": line.model, "model_patch": patch}
                files[line.sample].write(json.dumps(fields).encode() + b"\n")
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())
        for sample in files:
            _part(directory, sample).replace(directory / _name(sample))
        for path in directory.glob("predictions-*.jsonl"):
            if path.name not in map(_name, files):
                path.unlink()
    except OSError as exc:
        raise TranscriptError(f"Predictions cannot be written to {directory}: {exc.strerror}.") from exc
    return mended


def _name(sample: int) -> str:
    return "predictions.jsonl" if sample == 1 else f"predictions-{sample}.jsonl"


def _part(directory: Path, sample: int) -> Path:
    return directory / f".{_name(sample)}.part"
