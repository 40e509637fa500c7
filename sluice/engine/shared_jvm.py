"""A JVM whose Spark several processes use at the same time.

The process that keeps the JVM (`JvmKeeper`) has the first Spark session. For each process that asks
for a session, the keeper creates a session, and a py4j server in the JVM. Only this process can use
the server. So a process has its own settings, temporary views, connections and callbacks. When the
process has ended, for whatever reason, the keeper cancels the jobs that the process still has in
Spark.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# PySpark imports these modules only when they are first used. Import them here, so that the process
# of each run need not do so.
import pyspark.sql.classic.column
import pyspark.sql.classic.dataframe
import pyspark.sql.pandas.map_ops  # noqa: F401
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from sluice.engine.session import prepare_pyspark, set_up, settings_errors
from sluice.errors import EngineError
from sluice.settings import Settings

_LONGEST_ANSWER = 4_096
_OF_TASKS = "spark.executorEnv."
"""The prefix of the settings with environment variables of tasks."""


class JvmKeeper:
    """Serves sessions of one Spark application to processes of this host.

    Each process has its own connection.
    """

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self._spark = spark
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(128)

    def serve(self) -> None:
        """Serve processes in threads, as long as this process lives."""
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Create a session for a process, and clean up when the process has ended."""
        with connection:
            session, server, secret = self._new_session()
            port = server.getJavaServer().getListeningPort()
            with suppress(OSError):
                connection.sendall(json.dumps([port, secret]).encode())
                connection.recv(1)
            self._clean_up(session, server)

    def _new_session(self) -> tuple[Any, Any, str]:
        """Return a new session, a started py4j server with access to the session, and a secret."""
        jvm: Any = self._spark.sparkContext._jvm
        spark: Any = self._spark
        session, secret = spark._jsparkSession.newSession(), secrets.token_hex(32)
        server = (
            jvm.py4j.ClientServer.ClientServerBuilder(session)
            .authToken(secret)
            .javaPort(0)
            .javaAddress(jvm.java.net.InetAddress.getLoopbackAddress())
            .build()
        )
        return session, server, secret

    def _clean_up(self, session: Any, server: Any) -> None:
        with suppress(Py4JError, OSError):
            context = session.sparkContext()
            # A query ends when its jobs have been cancelled. Do not wait for its end.
            for query in session.streams().active():
                context.cancelJobGroup(query.runId().toString(), "The run has ended.")
            session.interruptAll()
            server.shutdown()


class SharedConf(SparkConf):
    """The settings of the JVM, for PySpark's context."""

    def getAll(self) -> list[tuple[str, str]]:  # noqa: N802 (the name is PySpark's)
        """Return only the settings that set environment variables of tasks.

        The context needs no other settings here, and each setting takes three calls of the JVM.
        """
        java_conf: Any = self._jconf
        pairs = java_conf.getAllWithPrefix(_OF_TASKS)
        return [(_OF_TASKS + pair._1(), pair._2()) for pair in pairs]


@dataclass
class SharedJvm:
    """The JVM of a `JvmKeeper`, as seen by a process that was forked for a run."""

    path: Path
    """The socket of the keeper."""
    environment: Mapping[str, str]
    """The environment variables of the JVM."""
    of_tasks: Mapping[str, str]
    """Environment variables for the daemon of this run's Python processes, which Spark starts. Runs
    with different variables have different daemons."""

    def session(self, settings: Settings, name: str) -> SparkSession:
        """Return a session of this process.

        Raise EngineError if the JVM has ended.
        """
        self._keeper = socket.socket(socket.AF_UNIX)
        try:
            self._keeper.connect(str(self.path))
            answer = self._keeper.recv(_LONGEST_ANSWER)
        except OSError:
            answer = b""
        if not answer:
            raise EngineError(
                "The warm driver's JVM has ended.", next_step="Run the pipeline again."
            )
        port, secret = json.loads(answer)
        os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
        prepare_pyspark()
        with settings_errors():
            gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
            session = gateway.entry_point
            java_context = gateway.jvm.JavaSparkContext.fromSparkContext(session.sparkContext())
            context = SparkContext(
                gateway=gateway,
                jsc=java_context,
                conf=SharedConf(_jvm=gateway.jvm, _jconf=java_context.getConf()),
                environment={**self.of_tasks},
            )
            return set_up(SparkSession(context, session), settings)

    def stop(self, spark: SparkSession) -> None:
        """Close the session. The JVM and the sessions of other processes stay open."""
        self._keeper.close()
