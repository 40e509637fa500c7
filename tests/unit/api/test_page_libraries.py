"""The page's libraries are the files that their authors have published."""

from __future__ import annotations

import hashlib

import pytest

from sluice.api.page.page import STATIC

pytestmark = pytest.mark.unit

DIGESTS = {
    # @dagrejs/dagre 3.1.3, dist/dagre.min.js
    "dagre.min.js": "54a503e346f93ca0bb10abe7999587e037262935687aca45eb4e4b0f64bbb578",
    # uplot 1.6.32, dist/uPlot.iife.min.js
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
}


def test_the_libraries_are_unchanged_and_have_their_licences() -> None:
    scripts = {file.name: file for file in (STATIC / "vendor").glob("*.js")}
    digests = {
        name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in scripts.items()
    }
    assert digests == DIGESTS
    for name in scripts:
        licence = STATIC / "vendor" / f"{name.split('.')[0]}.LICENSE.txt"
        assert "Permission is hereby granted, free of charge" in licence.read_text()
