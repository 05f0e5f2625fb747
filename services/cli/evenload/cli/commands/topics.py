"""`evenload topics create | list | check`."""

import asyncio
from typing import Any

from evenload.cli.apps import command_app
from evenload.cli.errors import EXIT_VERDICT
from evenload.cli.options import Json, with_settings
from evenload.cli.tables import print_rows
from evenload.settings import KafkaSettings, Settings

app = command_app(no_args_is_help=True, help="Create, list and check the Kafka topics.")


@app.command()
@with_settings("kafka")
def create(settings: Settings, as_json: Json = False) -> None:
    """Create the topics that are missing; those that exist are checked, never changed."""
    from evenload.bus.topics import ensure_topics

    kafka = settings.kafka
    asyncio.run(ensure_topics(kafka.bootstrap, topic_specs(kafka)))
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


def topic_specs(kafka: KafkaSettings) -> Any:
    """The topics as the settings want them."""
    from evenload.bus.topics import specs

    return specs(kafka.topic_prefix, kafka.partitions, kafka.replication)


def describe(kafka: KafkaSettings) -> list[dict[str, Any]]:
    """One row per topic, as it is now."""
    from evenload.bus.topics import describe_topics

    found = asyncio.run(describe_topics(kafka.bootstrap, topic_specs(kafka)))
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
