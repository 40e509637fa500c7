"""Gets tokens for AWS MSK with IAM. AWS's own library makes them; it is in the extra `msk`."""

from __future__ import annotations

import os
from typing import Any

from sluice.errors import SettingsError

_NAMES = ("region", "role", "profile")


def token(argument: str) -> tuple[str, float]:
    """Return a token, and the time at which it expires, in epoch seconds.

    `argument`: `region=eu-central-1`, and optionally `role=ARN` or `profile=NAME`, separated by
    blanks or commas. By default, AWS's library looks for the credentials in the usual places of
    AWS. Raises SettingsError if the region or the library is missing.
    """
    signer = provider()
    options = _options(argument)
    region = options.get("region") or os.environ.get("AWS_REGION", "")
    if not region:
        raise SettingsError(
            "The AWS region of the MSK brokers is unknown.",
            next_step="Set sasl.oauthbearer.config to region=NAME.",
        )
    try:
        if "role" in options:
            made, expires_ms = signer.generate_auth_token_from_role_arn(region, options["role"])
        elif "profile" in options:
            made, expires_ms = signer.generate_auth_token_from_profile(region, options["profile"])
        else:
            made, expires_ms = signer.generate_auth_token(region)
    except AttributeError:
        # If there are no credentials, version 1.0.2 of the library raises AttributeError.
        raise SettingsError(
            "AWS's library has found no credentials.",
            next_step="Give this process credentials: a role, a profile or environment variables.",
        ) from None
    return made, expires_ms / 1_000


def provider() -> Any:
    """Return the class of AWS's library that makes tokens.

    Raise SettingsError if the library is missing.
    """
    try:
        from aws_msk_iam_sasl_signer import (  # type: ignore[import-not-found]
            MSKAuthTokenProvider,
        )
    except ImportError:
        raise SettingsError(
            "AWS MSK with IAM needs the package aws-msk-iam-sasl-signer-python.",
            next_step="Install the package here and, on a cluster, on each executor's host: pip "
            "install 'sluice-streams[msk]'.",
        ) from None
    return MSKAuthTokenProvider


def _options(argument: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in argument.replace(",", " ").split():
        name, sign, value = word.partition("=")
        if not sign or name not in _NAMES:
            raise SettingsError(
                f"sasl.oauthbearer.config has {word!r}, which is none of {', '.join(_NAMES)}.",
                next_step="Write for example region=eu-central-1.",
            )
        options[name] = value
    return options
