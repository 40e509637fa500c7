"""Imports stay light: a topology and its plan import neither Spark, Airflow nor Kafka."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {
    "airflow",
    "confluent_kafka",
    "fastapi",
    "numpy",
    "pandas",
    "pyarrow",
    "pyspark",
    "sqlalchemy",
}

ALLOWED = {
    "nothing": (
        "sluice", "sluice.errors", "sluice.settings", "sluice.topology", "sluice.topology.drawing", "sluice.plan",
        "sluice.state.model", "sluice.answers", "sluice.client",
    ),
    "sqlalchemy": ("sluice.state.ledger.ledger", "sluice.query"),
    "confluent_kafka": ("sluice.examples.orders", "sluice.kafka.topics", "sluice.local.broker"),
}  # fmt: skip
"""The only heavy package that modules may import, and these modules."""


ASKED = [
    *(
        f"sluice/{part}"
        for part in (
            "api",
            "client",
            "commands",
            "examples",
            "orchestration",
            "query",
            "server",
            "state",
        )
    ),
    "dags",
    "plugins",
]
"""Modules that read data which others have sent or stored."""
REVIVES = {
    "pickle",
    "cloudpickle",
    "marshal",
    "shelve",
    "dill",
    "joblib",
    "yaml",
    "eval",
    "exec",
    "__import__",
}
"""Names that turn data into code or arbitrary objects."""
SHELLS = {"system", "popen", "getoutput", "BashOperator"}
"""Names of functions that start a shell."""


IMPORT = f"""
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
    print(module, *sorted({{name.split('.')[0] for name in sys.modules}} & {HEAVY!r}))
"""


@pytest.mark.parametrize("allowed", ALLOWED)
def test_modules_do_not_import_heavy_packages(allowed: str) -> None:
    command = [sys.executable, "-c", IMPORT, *ALLOWED[allowed]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    imported = {
        module: {*packages} for module, *packages in map(str.split, done.stdout.splitlines())
    }
    assert imported.keys() == {*ALLOWED[allowed]}
    assert {
        module: packages for module, packages in imported.items() if not packages <= {allowed}
    } == {}


PYTHON_FUNCTIONS = """
from sluice import Pipeline
words = Pipeline("words").stream("texts", value=str).filter(lambda text: text != "")
words.map_values(str.upper).group_by_key().count(store="counts")
"""


@pytest.mark.parametrize(
    "code",
    [
        "import sluice",
        "from sluice import Pipeline",
        "import sluice.topology.drawing",
        PYTHON_FUNCTIONS,
    ],
)
def test_a_topology_without_sql_does_not_import_the_parser_of_sql(code: str) -> None:
    """Importing sqlglot takes as long as importing all the rest of a topology."""
    not_imported = HEAVY | {"sqlglot"}
    check = f"import sys; print(sorted({not_imported!r} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{check}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


OTHER_EXTRAS = HEAVY | {
    "jinja2",
    "psutil",
    "psycopg",
    "starlette",
    "structlog",
    "uvicorn",
    "uvloop",
}
"""What the extras spark and airflow install, and the extra client does not."""


@pytest.mark.parametrize(
    "code",
    [
        "import sluice; sluice.Client('http://127.0.0.1'); sluice.AsyncClient",
        "from sluice.commands.cli import app; app(['query', 'range', '--help'], standalone_mode=False)",
        "from sluice import Pipeline; Pipeline('p').stream('s', value=str).group_by_key().count(store='n')",
    ],
)
def test_clients_and_topologies_need_neither_spark_nor_airflow(code: str) -> None:
    blocked = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {OTHER_EXTRAS!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
"""
    done = subprocess.run(
        [sys.executable, "-c", blocked + code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def names(tree: ast.AST) -> set[str]:
    """Every name that the code imports or uses."""
    results = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            results |= {
                part
                for name in [*modules, *(one.name for one in node.names)]
                for part in name.split(".")
            }
        elif isinstance(node, ast.Name):
            results.add(node.id)
        elif isinstance(node, ast.Attribute):
            results.add(node.attr)
    return results


@pytest.mark.attack(
    "S7", "data that is code: a pickle in a cursor, a shard, the ledger or a response of a server"
)
def test_nothing_that_is_sent_or_stored_can_become_code() -> None:
    files = [file for folder in ASKED for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 60
    assert {
        str(file): found
        for file in files
        if (found := names(ast.parse(file.read_text())) & REVIVES)
    } == {}


@pytest.mark.attack("S8", "a shell between a run's parameters and the started process")
def test_nothing_is_started_through_a_shell() -> None:
    for file in (
        file
        for folder in ("sluice", "dags", "plugins", "spark_jobs")
        for file in (ROOT / folder).rglob("*.py")
    ):
        text = file.read_text()
        # `times.system` is the CPU time of a process in the kernel.
        text = text.replace("times.system", "times.kernel")
        if any(name in text for name in SHELLS):
            assert not names(ast.parse(text)) & SHELLS, file
        assert "shell=True" not in text, file


def test_the_process_that_imports_pipelines_does_not_import_airflow() -> None:
    """Airflow's DAG processor starts this process without access to Airflow's database."""
    code = (
        "import sys; from sluice.orchestration.dag_facts import facts_text; "
        "assert 'airflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
