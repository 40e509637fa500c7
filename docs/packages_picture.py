"""Draw `sluice`'s packages in docs/images/packages.svg, and list all of them in CONTRIBUTING.md.

The rows are the layers of import-linter in pyproject.toml, and the sentences are the first ones of
the packages' docstrings. `make docs` runs this program; a test fails if the picture or the list is
out of date.
"""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "images" / "packages.svg"
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- Written by `python -m docs.packages_picture` -->\n", "<!-- End -->"

_WIDTH, _GAP, _MARGIN = 1_080, 8, 12
_LINE_HEIGHT, _CHARACTER_WIDTH = 14, 6.4
_PACKAGE_FILL, _MODULE_FILL = "#dbeafe", "#f1f5f9"


def layers() -> list[list[str]]:
    """Return the packages and modules of `sluice`, the highest layer first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    whole = next(contract for contract in contracts if contract.get("containers") == ["sluice"])
    return [[name.strip() for name in layer.split("|")] for layer in whole["layers"]]


def sentence(path: Path) -> str:
    """Return the first sentence of the docstring of a package (a folder) or a module (a file)."""
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph, maxsplit=1)[0]


def picture() -> str:
    """Return the picture, as SVG: a row for each layer.

    A package imports only packages in the rows below its own.
    """
    boxes: list[str] = []
    top = _MARGIN
    for layer in layers():
        width = (_WIDTH - (len(layer) - 1) * _GAP) // len(layer)
        texts = {name: _lines(name, width) for name in layer}
        height = 30 + _LINE_HEIGHT * max(len(lines) for lines in texts.values())
        for column, (name, lines) in enumerate(texts.items()):
            boxes += _box(name, lines, _MARGIN + column * (width + _GAP), top, width, height)
        top += height + _GAP
    whole = _WIDTH + 2 * _MARGIN
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {top}" width="{whole}" '
        f'height="{top}" font-family="system-ui, sans-serif" font-size="11" role="img" '
        'aria-label="the packages of sluice in layers">',
        f'<rect width="{whole}" height="{top}" fill="#ffffff"/>',
        *boxes,
        "</svg>\n",
    ])  # fmt: skip


def _lines(name: str, width: int) -> list[str]:
    """Return the sentence about a package, in lines that fit a box of this width."""
    return textwrap.wrap(
        _plain(sentence(ROOT / "sluice" / name)), int((width - 16) / _CHARACTER_WIDTH)
    )


def _box(name: str, lines: list[str], left: int, top: int, width: int, height: int) -> list[str]:
    is_package = (ROOT / "sluice" / name).is_dir()
    fill = _PACKAGE_FILL if is_package else _MODULE_FILL
    title = f"{name}/" if is_package else f"{name}.py"
    box = [
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="6" fill="{fill}" '
        'stroke="#64748b"/>',
        f'<text x="{left + 8}" y="{top + 17}" font-weight="bold" font-size="13" '
        f'fill="#0f172a">{title}</text>',
    ]
    for number, line in enumerate(lines):
        y = top + 33 + number * _LINE_HEIGHT
        box.append(f'<text x="{left + 8}" y="{y}" fill="#334155">{escape(line)}</text>')
    return box


def _plain(text: str) -> str:
    return text.replace("`", "")


def table() -> str:
    """Return all packages as a Markdown table.

    Those of the highest layer come first, and each is followed by the packages inside it.
    """
    rows = ["| folder in `sluice/` | contents |", "| --- | --- |"]
    for layer in layers():
        for name in layer:
            rows += _rows(ROOT / "sluice" / name)
    return "\n".join(rows) + "\n"


def _rows(package: Path) -> list[str]:
    """Return the rows of a package and of the packages inside it; none for a module."""
    return [
        f"| `{file.parent.relative_to(ROOT / 'sluice').as_posix()}/` | {sentence(file.parent)} |"
        for file in (*package.glob("__init__.py"), *sorted(package.glob("*/__init__.py")))
    ]


def page() -> str:
    """CONTRIBUTING.md with the current table."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2]


def main() -> None:
    """Write the picture and the table."""
    PICTURE.write_text(picture())
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
