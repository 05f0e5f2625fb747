"""`evenload topics create | list | check | dead-letters | acls`."""

import asyncio
import os
from collections import deque
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from evenload.cli.apps import command_app
from evenload.cli.errors import EXIT_VERDICT, CommandError
from evenload.cli.options import Json, with_settings
from evenload.cli.tables import print_rows
from evenload.settings import KafkaSettings, Settings

BEGIN_BYTES = 16

app = command_app(no_args_is_help=True, help="Create, list and check the Kafka topics.")


@app.command()
@with_settings("kafka")
def create(settings: Settings, as_json: Json = False) -> None:
    """Create the topics that are missing; those that exist are checked, never changed."""
    from evenload.bus.access import cluster_of
    from evenload.bus.topics import ensure_topics

    kafka = settings.kafka
    asyncio.run(ensure_topics(cluster_of(kafka, os.environ), topic_specs(kafka)))
    print_rows(describe(kafka), as_json=as_json)


@app.command("list")
@with_settings("kafka")
def list_topics(settings: Settings, as_json: Json = False) -> None:
    """List the topics with their partitions and how many records they hold."""
    print_rows(describe(settings.kafka), as_json=as_json)


@app.command()
@with_settings("kafka")
def check(settings: Settings, as_json: Json = False) -> int:
    """Check that every topic is there and as it should be; exit code 1 if not."""
    rows = describe(settings.kafka)
    print_rows(rows, as_json=as_json)
    return EXIT_VERDICT if any(row["status"] == "fail" for row in rows) else 0


@app.command()
@with_settings("kafka")
def dead_letters(
    settings: Settings,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Show at most so many, the newest.")] = 50,
    as_json: Json = False,
) -> None:
    """List the records that the scorer could not use, with their reason and origin."""
    print_rows(asyncio.run(_dead_letters(settings.kafka, limit)), as_json=as_json)


@app.command()
@with_settings("kafka")
def acls(
    settings: Settings,
    process: Annotated[
        list[str] | None, typer.Option(help="Only of this one: router, scorer, collector, audit or topics; repeatable.")
    ] = None,
    principal: Annotated[
        str, typer.Option(help="Whom to grant it, with {process} for the name of the process.")
    ] = "User:{process}",
    as_json: Json = False,
) -> None:
    """Print the least rights that each process needs, as commands of Kafka's own tools; asks no broker."""
    from evenload.bus.rights import RIGHTS, command, rights_of
    from evenload.bus.topics import topic_names

    kafka = settings.kafka
    chosen = process or list(RIGHTS)
    if unknown := sorted(set(chosen) - RIGHTS.keys()):
        raise CommandError(f"--process {unknown[0]}: there is none of that name; there are {', '.join(RIGHTS)}")
    rows = [
        {
            "process": name,
            "operation": right.operation,
            right.kind: right.name,
            "command": command(right, principal.replace("{process}", name), kafka.bootstrap),
        }
        for name in chosen
        for right in rights_of(name, topic_names(kafka.topic_prefix)._asdict(), settings.scorer.app_id)
    ]
    if as_json:
        print_rows(rows, as_json=True)
        return
    for row in rows:
        typer.echo(row["command"])


async def _dead_letters(kafka: KafkaSettings, limit: int) -> list[dict[str, Any]]:
    from evenload.bus.access import cluster_of
    from evenload.bus.log_reader import read_log
    from evenload.bus.topics import topic_names
    from evenload.schemas import WireError, decode_dead_letter

    rows: deque[dict[str, Any]] = deque(maxlen=limit)
    async for record in read_log(cluster_of(kafka, os.environ), topic_names(kafka.topic_prefix).dead_letters):
        at = datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
        try:
            letter = decode_dead_letter(record.value or b"")
        except WireError as error:
            origin = f"dead-letters {record.partition}@{record.offset}"
            rows.append(
                {"at": at, "origin": origin, "reason": str(error), "bytes": len(record.value or b""), "begin": ""}
            )
            continue
        origin = f"{letter.topic} {letter.partition}@{letter.offset}"
        begin = letter.payload[:BEGIN_BYTES].hex(" ")
        rows.append({"at": at, "origin": origin, "reason": letter.reason, "bytes": letter.size, "begin": begin})
    return sorted(rows, key=lambda row: str(row["at"]))


def topic_specs(kafka: KafkaSettings) -> Any:
    """The topics as the settings want them."""
    from evenload.bus.topics import specs

    return specs(kafka.topic_prefix, kafka.partitions, kafka.replication)


def describe(kafka: KafkaSettings) -> list[dict[str, Any]]:
    """One row per topic, as it is now."""
    from evenload.bus.access import cluster_of
    from evenload.bus.topics import describe_topics

    found = asyncio.run(describe_topics(cluster_of(kafka, os.environ), topic_specs(kafka)))
    return [
        {
            "topic": topic.name,
            "status": "fail" if topic.problems else "ok",
            "partitions": topic.partitions,
            "records": topic.records,
            "problems": list(topic.problems),
        }
        for topic in found
    ]
