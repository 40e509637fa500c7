"""Sends a pipeline's file, its modules and its schemas to the executors on other hosts."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
import zipfile
from pathlib import Path

from pyspark import SparkContext

from sluice.spark_submit import is_local
from sluice.values.pipeline_modules import SCHEMAS, modules_beside


def send_to_executors(spark: SparkContext, file: Path) -> None:
    """Copy a pipeline's file, the modules beside it and pulled schemas to executors on other hosts.

    Does nothing for a file that was copied before, because Spark would log a warning.
    """
    if is_local(spark.master or ""):
        return
    if _is_new(spark, file):
        spark.addPyFile(_uri(file))
    archive = modules_archive(file)
    if archive is not None and _is_new(spark, archive):
        spark.addPyFile(_uri(archive))
    for schema in sorted((file.parent / SCHEMAS).glob("*.json")):
        if _is_new(spark, schema):
            spark.addFile(_uri(schema))


def modules_archive(file: Path) -> Path | None:
    """Write the modules beside a pipeline's file to an archive, whose name has their hash.

    Return None if there are no such modules. Until this process ends, the archive is in its own
    folder, in which nobody else can write: Spark reads the archive whenever an executor needs it.
    """
    contents = {path.relative_to(file.parent): path.read_bytes() for path in modules_beside(file)}
    if not contents:
        return None
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    folder = Path(tempfile.mkdtemp(prefix="sluice-modules-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = folder / f"modules-{digest.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
        for name, content in contents.items():
            written.writestr(str(name), content)
    return archive


def _is_new(spark: SparkContext, file: Path) -> bool:
    name = _uri(file).rpartition("/")[2]
    return not any(added.endswith(f"/files/{name}") for added in spark.listFiles)


def _uri(file: Path) -> str:
    # If Spark got a path, it would take `#` for the end of the file's name.
    return file.absolute().as_uri()
