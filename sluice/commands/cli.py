"""The command `sluice`: the root of all commands, which are in files of this folder.

| commands | file |
| --- | --- |
| init | init_command |
| constraints | constraints_command |
| produce | produce_commands |
| demo | demo_command |
| explain, check, describe, run, rebuild, repartition, audit | pipeline_commands |
| generations | generations_commands |
| status, retire | status_command |
| query | query_commands |
| kafka | kafka_commands |
| topics | topics_commands |
| schema | schema_commands |
| dead-letters | dead_letters_commands |
| serve, move, import-state, workers | serve_commands |
| standby | standby_commands |
| backup, restore | backup_commands |
| recover | recover_command |
| remove | remove_command |
| rename | rename_command |
| pause, resume | pause_commands |
| deploy | deploy_command |
| warm | warm_command |
| libraries | libraries_commands |
| observe | observe_commands |

A new command is a function in one of these files. A group's commands are registered with the
group's `app`, and all other commands below. Commands import everything else inside their functions,
so that --help is
fast.
"""

from __future__ import annotations

import typer

from sluice.commands import (
    backup_commands,
    constraints_command,
    dead_letters_commands,
    demo_command,
    deploy_command,
    generations_commands,
    init_command,
    kafka_commands,
    libraries_commands,
    observe_commands,
    pause_commands,
    pipeline_commands,
    produce_commands,
    query_commands,
    recover_command,
    remove_command,
    rename_command,
    schema_commands,
    serve_commands,
    standby_commands,
    status_command,
    topics_commands,
    warm_command,
)
from sluice.commands.console import Commands

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    # Pretty tracebacks show the values of variables, among them passwords.
    pretty_exceptions_enable=False,
    help="Stream processing with Airflow, Spark and Kafka.",
)
app.add_typer(produce_commands.app, name="produce")
app.add_typer(kafka_commands.app, name="kafka")
app.add_typer(topics_commands.app, name="topics")
app.add_typer(libraries_commands.app, name="libraries")
app.add_typer(observe_commands.app, name="observe")
app.add_typer(schema_commands.app, name="schema")
app.add_typer(query_commands.app, name="query")
app.add_typer(generations_commands.app, name="generations")
app.add_typer(dead_letters_commands.app, name="dead-letters")
app.add_typer(standby_commands.app, name="standby")
for command in (
    init_command.init,
    constraints_command.constraints,
    demo_command.demo,
    status_command.status,
    status_command.retire,
    serve_commands.serve,
    serve_commands.move,
    serve_commands.import_state,
    serve_commands.workers,
    backup_commands.backup,
    backup_commands.restore,
    pipeline_commands.explain,
    pipeline_commands.check,
    pipeline_commands.describe,
    pipeline_commands.run,
    pipeline_commands.rebuild,
    pipeline_commands.repartition,
    recover_command.recover,
    remove_command.remove,
    rename_command.rename,
    deploy_command.deploy,
    pause_commands.pause,
    pause_commands.resume,
    pipeline_commands.audit,
    warm_command.warm,
):
    app.command()(command)
