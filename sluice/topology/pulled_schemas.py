"""Schemas that `sluice schema pull` has written beside a pipeline's file.

Airflow, among others, loads a pipeline's file again and again, and must never wait for the
registry. The pipeline is therefore checked against a schema in a file, which is versioned with the
pipeline.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import msgspec

from sluice.errors import TopologyError
from sluice.values.pipeline_modules import SCHEMAS
from sluice.values.registered_schemas import RegisteredSchema

_HERE = f"{Path(__file__).parent}{os.sep}"


def file_of(folder: Path, subject: str) -> Path:
    """Return the file with a subject's schema, for pipelines in this folder."""
    # Subjects in a context contain colons. A subject that is a record's name may contain slashes.
    name = ""
    for sign in subject:
        name += sign if sign.isalnum() or sign in "-_." else "_"
    return folder / SCHEMAS / f"{name}.json"


def pulled_schema(where: str, subject: str) -> RegisteredSchema:
    """Read the schema of a subject for the file that is being loaded."""
    folder = _folder_of_caller()
    path = file_of(folder, subject)
    # On the hosts of Spark executors, Spark puts all files of a run into one folder, so look there,
    # too.
    for place in (path, folder / path.name):
        if place.is_file():
            return read_file(place)
    raise TopologyError(
        f"{where}: there is no file {path}.",
        next_step=f"Write the file: sluice schema pull {subject}. Then add it to version control.",
    )


def read_file(path: Path) -> RegisteredSchema:
    try:
        return msgspec.json.decode(path.read_bytes(), type=RegisteredSchema)
    except (OSError, msgspec.DecodeError) as error:
        raise TopologyError(
            f"{path} cannot be read: {error}.",
            next_step="Write the file again: sluice schema pull SUBJECT.",
        ) from None


def write_file(folder: Path, schema: RegisteredSchema) -> Path:
    """Write a subject's schema for the pipelines in this folder, and return the file."""
    path = file_of(folder, schema.subject)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(schema), indent=1) + b"\n")
    return path


def _folder_of_caller() -> Path:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return Path() if frame is None else Path(frame.f_code.co_filename).absolute().parent
