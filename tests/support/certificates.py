"""Certificates that tests make with OpenSSL; each is its own authority."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path, name: str, host: str = "IP:127.0.0.1") -> Path:
    """Make NAME.key, NAME.crt and NAME.pem, which contains both. Returns the certificate's path.

    `host` is the certificate's only subject alternative name: `IP:` and an address, or `DNS:` and a
    name. Skips the test if OpenSSL is not installed.
    """
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    command = [
        program,
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        f"/CN={name}",
    ]
    command += ["-addext", f"subjectAltName={host}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    (folder / f"{name}.pem").write_text(key.read_text() + certificate.read_text())
    return certificate
