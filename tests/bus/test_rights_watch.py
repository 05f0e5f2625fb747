"""A right that is taken away after the start is named at once, and ends nobody."""

import asyncio
import logging
import uuid
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from evenload.bus.access import cluster_of
from evenload.bus.rights import rights_of
from evenload.bus.rights_watch import RightsWatch
from evenload.bus.topics import ensure_topics, specs, topic_names
from tests.secured_kafka import SecuredKafka


def page(watch: RightsWatch) -> str:
    registry = CollectorRegistry()
    registry.register(watch)
    return generate_latest(registry).decode()


async def becomes(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not seen():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.kafka
@pytest.mark.parametrize("process", ["router", "collector"])
async def test_what_kafka_no_longer_lets_a_process_do_is_said_once_and_so_is_that_it_may_again(
    secured: SecuredKafka, process: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "evenload.bus.rights_watch")
    prefix = f"t-{uuid.uuid4().hex[:8]}"
    rights = list(rights_of(process, topic_names(prefix)._asdict(), ""))
    await ensure_topics(secured.plain, specs(prefix))
    await secured.grant(f"User:{process}", rights)
    brokers = cluster_of(secured.settings(secured.by_user(process), prefix), {})
    watch = RightsWatch(brokers, process, prefix, every_s=0.1)
    watch.start()
    try:
        await becomes(lambda: not watch.lacking)
        for taken in (rights[:1], rights):
            await secured.revoke(f"User:{process}", taken)
            await becomes(lambda taken=taken: all(str(right) in watch.lacking for right in taken))  # type: ignore[misc]
            assert watch.lacking.startswith(f"user '{process}' lacks rights at Kafka: ")
            assert "evenload_kafka_refuses 1.0" in page(watch)
            await secured.grant(f"User:{process}", taken)
            await becomes(lambda: not watch.lacking)
            assert "evenload_kafka_refuses 0.0" in page(watch)
    finally:
        await watch.close()
    said = [record for record in caplog.records if record.name == "evenload.bus.rights_watch"]
    assert len(said) <= 8, "each state once, not each time that it is looked at"


@pytest.mark.kafka
async def test_a_wrong_password_is_said_the_same_way(secured: SecuredKafka, caplog: pytest.LogCaptureFixture) -> None:
    watch = RightsWatch(cluster_of(secured.settings(secured.by_user("unknown")), {}), "router", "t", every_s=0.1)
    watch.start()
    try:
        await becomes(lambda: bool(watch.lacking))
        await asyncio.sleep(1)
    finally:
        await watch.close()
    assert "refused user 'unknown' by SCRAM-SHA-512" in watch.lacking
    assert caplog.text.count("until then telemetry waits") == 1


async def test_a_cluster_without_security_or_one_that_is_away_is_nothing_to_tell(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = RightsWatch("127.0.0.1:1", "router", "t")
    plain.start()
    await plain.close()
    assert "evenload_kafka_refuses 0.0" in page(plain)
    assert not caplog.records
