"""The manifests in docker/kubernetes, and the program that starts an executor in a pod."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from sluice.settings import Settings

FOLDER = Path(__file__).parents[2] / "docker" / "kubernetes"


def documents(name: str) -> list[Any]:
    return [*yaml.safe_load_all((FOLDER / name).read_text())]


def test_an_executor_gets_the_options_of_spark_in_their_order(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    options = {f"SPARK_JAVA_OPT_{number}": f"-Dn={number} of 11" for number in range(11)}
    given = {
        "JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"], "SPARK_HOME": "/spark",
        "SPARK_CLASSPATH": "", "SPARK_EXECUTOR_MEMORY": "512m", "SPARK_DRIVER_URL": "spark://d:1",
        "SPARK_EXECUTOR_ID": "3", "SPARK_EXECUTOR_CORES": "1", "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.9", "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod",
    }  # fmt: skip
    process = subprocess.run(
        ["bash", FOLDER / "executor.sh", "executor"],
        env=options | given,
        capture_output=True,
        text=True,
        check=True,
    )
    arguments = process.stdout.splitlines()
    assert arguments[:11] == [f"-Dn={number} of 11" for number in range(11)]
    assert arguments[11:15] == ["-Xms512m", "-Xmx512m", "-cp", ":/spark/jars/*"]
    assert arguments[-4:] == ["--resourceProfileId", "0", "--podName", "pod"]


def test_the_manifests_name_each_other() -> None:
    (kustomization,) = documents("kustomization.yaml")
    files = [*kustomization["resources"], *kustomization["configMapGenerator"][0]["files"]]
    assert {*files, "kustomization.yaml"} == {file.name for file in FOLDER.glob("*.yaml")}
    account, role, binding = documents("access.yaml")
    (settings,) = documents("settings.yaml")
    (task,) = documents("worker-template.yaml")
    assert account["metadata"]["name"] == binding["subjects"][0]["name"]
    assert role["metadata"]["name"] == binding["roleRef"]["name"]
    assert task["spec"]["serviceAccountName"] == account["metadata"]["name"]
    (container,) = task["spec"]["containers"]
    assert container["envFrom"][0]["configMapRef"]["name"] == settings["metadata"]["name"]
    (maps,) = kustomization["configMapGenerator"]
    assert task["spec"]["volumes"][0]["configMap"]["name"] == maps["name"]
    (executor,) = documents("executor-template.yaml")
    assert executor["spec"]["containers"][0]["command"][1] == "/opt/sluice/executor.sh"
    dockerfile = (FOLDER.parent / "Dockerfile").read_text()
    assert "docker/kubernetes/executor.sh ./" in dockerfile


def test_the_settings_are_valid() -> None:
    (settings,) = documents("settings.yaml")
    conf = Settings.read(settings["data"]).spark_conf
    (task,) = documents("worker-template.yaml")
    mounted = task["spec"]["containers"][0]["volumeMounts"][0]["mountPath"]
    assert conf["spark.kubernetes.executor.podTemplateFile"] == f"{mounted}/executor-template.yaml"
    for name in ("KAFKA", "SPARK"):
        assert json.loads(settings["data"][f"AIRFLOW_CONN_{name}_DEFAULT"])["conn_type"]
