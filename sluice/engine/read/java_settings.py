"""Translates Kafka's security settings from librdkafka's names to the names of the Java client, which Spark uses.

The driver reads the certificate files, so that executors need no copies of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sluice.errors import SettingsError, sentence
from sluice.kafka.brokers import CHOSEN_BY_CLIENT

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_SASL = {"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"}
_PEM = {
    "ssl.ca": "ssl.truststore.certificates",
    "ssl.certificate": "ssl.keystore.certificate.chain",
    "ssl.key": "ssl.keystore.key",
}
"""Setting of librdkafka, without its ending `.location` (for a file) or `.pem` (for the text) → Java's setting."""
_SSL = {"ssl.key.password", "ssl.endpoint.identification.algorithm"}
_PEM_NAMES = {f"{name}.{form}" for name in _PEM for form in ("location", "pem")}


def java_settings(kafka: Mapping[str, str]) -> dict[str, str]:
    """The same settings for a Java client. As in librdkafka, `security.protocol` decides which are used.

    Raises SettingsError, which never contains a value that may be secret, for a security setting that has no
    translation, an incomplete log-in, a file that cannot be read, or a key that Java cannot read.
    """
    protocol = kafka.get("security.protocol", "plaintext").upper()
    unchanged = [name for name in kafka if not _is_security(name) and name not in CHOSEN_BY_CLIENT]
    others = {name: kafka[name] for name in unchanged}
    translated = {"security.protocol": protocol} if "security.protocol" in kafka else {}
    unknown = []
    if protocol.startswith("SASL_"):
        unknown += [name for name in kafka if name.startswith("sasl.") and name not in _SASL]
        translated |= _sasl(kafka)
    if protocol.endswith("SSL"):
        unknown += [name for name in kafka if name.startswith("ssl.") and name not in _SSL | _PEM_NAMES]
        if kafka.get("enable.ssl.certificate.verification", "true").lower() not in ("true", "1"):
            unknown.append("enable.ssl.certificate.verification")
        translated |= _ssl(kafka)
    if unknown:
        raise SettingsError(
            f"Spark cannot use these settings of Kafka: {', '.join(sorted(unknown))}.",
            next_step=f"Remove them, or use {', '.join(sorted(_SASL | _SSL | _PEM_NAMES))}.",
        )
    return others | translated


def _is_security(name: str) -> bool:
    return name.startswith(("sasl.", "ssl.", "enable.ssl.")) or name == "security.protocol"


def _sasl(kafka: Mapping[str, str]) -> dict[str, str]:
    # librdkafka knows the setting under both names. Its default is GSSAPI.
    mechanism = kafka.get("sasl.mechanism") or kafka.get("sasl.mechanisms") or "GSSAPI"
    module = _LOGIN_MODULES.get(mechanism)
    if module is None:
        raise SettingsError(
            f"Kafka's sasl.mechanism is {mechanism!r}, which Sluice does not translate for Spark.",
            next_step=f"Set sasl.mechanism to {', '.join(_LOGIN_MODULES)}; or use a client certificate.",
        )
    if missing := [name for name in ("sasl.username", "sasl.password") if not kafka.get(name)]:
        raise SettingsError(
            f"Kafka's security.protocol needs {' and '.join(missing)}.",
            next_step="Add them to SLUICE_KAFKA, or to the extra of Airflow's Kafka connection.",
        )
    user, password = _quoted(kafka["sasl.username"]), _quoted(kafka["sasl.password"])
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{module} required username={user} password={password};",
    }


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _ssl(kafka: Mapping[str, str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, java in _PEM.items():
        if text := _pem(kafka, name):
            texts[java] = text
    if key := texts.get("ssl.keystore.key"):
        if "BEGIN PRIVATE KEY" not in key and "BEGIN ENCRYPTED PRIVATE KEY" not in key:
            raise SettingsError(
                "Kafka's client key is not in the format PKCS #8, the only one that Java reads.",
                next_step="Convert it: openssl pkcs8 -topk8 -in OLD.key -out NEW.key",
            )
        if "ssl.keystore.certificate.chain" not in texts:
            raise SettingsError(
                "Kafka's client key has no certificate.",
                next_step="Add ssl.certificate.location to Kafka's settings.",
            )
    elif "ssl.keystore.certificate.chain" in texts:
        raise SettingsError(
            "Kafka's client certificate has no key.",
            next_step="Add ssl.key.location to Kafka's settings.",
        )
    if "ssl.truststore.certificates" in texts:
        texts["ssl.truststore.type"] = "PEM"
    if "ssl.keystore.key" in texts:
        texts["ssl.keystore.type"] = "PEM"
        if password := kafka.get("ssl.key.password"):
            texts["ssl.key.password"] = password
    if (algorithm := kafka.get("ssl.endpoint.identification.algorithm")) is not None:
        # To switch off the check of host names, librdkafka needs `none`, and the Java client an
        # empty text.
        texts["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    return texts


def _pem(kafka: Mapping[str, str], name: str) -> str:
    if text := kafka.get(f"{name}.pem"):
        return text
    path = kafka.get(f"{name}.location")
    if not path:
        return ""
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a PEM file"
        raise SettingsError(
            f"Cannot read {path}, the file in Kafka's {name}.location: {sentence(reason)}",
            next_step="Correct the path, or let the user who runs the driver read the file.",
        ) from None
