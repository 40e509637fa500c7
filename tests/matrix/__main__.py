"""`python -m tests.matrix`: tries cells, prints a table, and writes the table into the docs with --write."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sluice.settings import settings
from tests.matrix.cells import CELLS
from tests.matrix.run_cell import CLONE, PARTS, SEEDED, TEST_PACKAGES, CellRun, missing
from tests.matrix.table import DOCUMENT, read_results, row_of, table, write_constraints, written


def main() -> int:
    """Run the chosen cells, and return 1 if one of them has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "sluice-matrix"))
    parser.add_argument("--write", action="store_true", help="write the table into the docs")
    parser.add_argument("--keep", action="store_true", help="keep environments of cells that pass")
    parser.add_argument("--table", action="store_true", help="run no cell: only print the table")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="run only these")
    parser.add_argument("--cells", nargs="+", default=(), help="parts of names; default: all")
    options = parser.parse_args()
    passed = True
    chosen = [cell for cell in CELLS if all(part in cell.name for part in options.cells)]
    uv = Path(shutil.which("uv") or Path(sys.executable).with_name("uv"))
    if options.table:
        chosen = []
    for cell in [*chosen]:
        if lacking := missing(cell, uv):
            chosen.remove(cell)
            print(f"{cell.name}: not run, because this machine lacks {lacking}", flush=True)
    if chosen:
        wheel = build_wheel(options.folder / f"wheel-{os.getpid()}", uv)
    for cell in chosen:
        run = CellRun(cell, options.folder, uv, wheel, settings().jars)
        passed = run.run(options.parts) and passed
        if run.has_passed_all and not options.keep:
            run.remove()
    results = read_results(options.folder / "results")
    print(table(map(row_of, results)))
    if options.write:
        DOCUMENT.write_text(written(DOCUMENT.read_text(), results))
        write_constraints(results, (*TEST_PACKAGES, *SEEDED))
    return 0 if passed else 1


def build_wheel(folder: Path, uv: Path) -> Path:
    """Build the wheel of the clone in a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    # Files that `build` has left from another version of the code would get into the wheel.
    with tempfile.TemporaryDirectory() as copy:
        source = Path(copy, "clone")
        listed = subprocess.run(
            ["git", "ls-files", "-z", "sluice", "pyproject.toml", "README.md", "LICENSE"],
            cwd=CLONE, check=True, capture_output=True, text=True,
        )  # fmt: skip
        for name in filter(None, listed.stdout.split("\0")):
            if (CLONE / name).is_file():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(CLONE / name, source / name)
        subprocess.run([uv, "build", "--quiet", "--wheel", "--out-dir", folder, source], check=True)
    return next(folder.glob("*.whl"))


if __name__ == "__main__":
    sys.exit(main())
