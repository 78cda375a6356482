"""Predictions as the harness of SWE-bench reads them: results → **predictions** → harness."""

import json
import os
from collections.abc import Set
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from coordinator.batch.lines import RESULTS, read_lines
from coordinator.errors import TranscriptError


def write_predictions(directory: Path, instances: Set[str]) -> None:
    """Write what the results say of these tasks: `predictions.jsonl` for the first run of each, `predictions-N.jsonl`
    for the N-th. Each file is whole or as it was.

    Raises:
        TranscriptError: they cannot be written.
        ConfigError: the results cannot be read.
    """
    files: dict[int, IO[bytes]] = {}
    try:
        with ExitStack() as stack:
            for line in read_lines(directory / RESULTS):
                if line.id not in instances or line.error is not None or line.patch is None:
                    continue
                if line.sample not in files:
                    files[line.sample] = stack.enter_context(_part(directory, line.sample).open("wb"))
                patch = (directory / line.patch).read_text(encoding="utf-8", errors="replace")
                fields = {"instance_id": line.id, "model_name_or_path": line.model, "model_patch": patch}
                files[line.sample].write(json.dumps(fields).encode() + b"\n")
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())
        for sample in files:
            _part(directory, sample).replace(directory / _name(sample))
    except OSError as exc:
        raise TranscriptError(f"Predictions cannot be written to {directory}: {exc.strerror}.") from exc


def _name(sample: int) -> str:
    return "predictions.jsonl" if sample == 1 else f"predictions-{sample}.jsonl"


def _part(directory: Path, sample: int) -> Path:
    return directory / f".{_name(sample)}.part"
