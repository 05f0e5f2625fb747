"""Getting in: every kind of client by every kind of proof, and what is said when a broker refuses."""

import logging
import re
import uuid
from pathlib import Path
from typing import Any

import pytest

from evenload.bus.access import AccessRefused, cluster_of, knock
from evenload.bus.emitter import Emitter
from evenload.bus.log_reader import read_log
from evenload.bus.rights import Right
from evenload.bus.snapshots import SnapshotReader
from evenload.bus.topics import BusUnavailable, describe_topics, ensure_topics, specs, topic_names
from evenload.schemas import Outcome, decode_batch
from evenload.settings import KafkaSettings, SettingsError
from tests.authority import Authority
from tests.secured_kafka import HOST, PASSWORD, SecuredKafka

EVERYTHING = ("Read", "Write", "Create", "DescribeConfigs")


@pytest.mark.kafka
@pytest.mark.parametrize("proof", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "certificate"])
async def test_admin_producer_and_consumer_get_in(secured: SecuredKafka, proof: str) -> None:
    prefix = f"t-{uuid.uuid4().hex[:8]}"
    names = topic_names(prefix)
    security = secured.by_certificate() if proof == "certificate" else secured.by_user("nobody", proof)
    principal = "User:CN=certified" if proof == "certificate" else "User:nobody"
    await secured.grant(principal, [Right("topic", name, what) for name in names for what in EVERYTHING])
    brokers = cluster_of(secured.settings(security), {})
    await ensure_topics(brokers, specs(prefix))
    assert all(topic.exists for topic in await describe_topics(brokers, specs(prefix)))
    async with Emitter(brokers, prefix, "r", partitions=4) as emitter:
        emitter.add(Outcome(instance="a", kind="ok"), 0)
        assert await emitter.flush(20)
    found = [decode_batch(record.value or b"") async for record in read_log(brokers, names.telemetry)]
    assert [event.instance for batch in found for event in batch.events] == ["a"]


@pytest.mark.kafka
async def test_who_is_refused_hears_why_and_what_to_do(secured: SecuredKafka, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    stranger = Authority(tmp_path, "stranger")
    certificate, key = stranger.certify("forged")
    nothing = {"cert_file": None, "key_file": None}
    forged = {"cert_file": str(certificate), "key_file": str(key)}
    cases: list[tuple[dict[str, Any], str]] = [
        (secured.by_user("router", password_file=str(wrong)), "refused user 'router' by SCRAM-SHA-512.*password_file"),
        (secured.by_user("router", "PLAIN", password_file=str(wrong)), "refused user 'router' by PLAIN"),
        (secured.by_user("unknown"), "refused user 'unknown'"),
        (secured.by_user("router", ca_file=None), "not trusted.*kafka.security.ca_file"),
        (secured.by_user("router", ca_file=str(stranger.file)), "not trusted"),
        (secured.by_certificate() | nothing, "no TLS with the broker.*certificate required.*cert_file"),
        (secured.by_certificate() | forged, "no TLS with the broker.*cert_file"),
    ]
    for security, expected in cases:
        brokers = cluster_of(secured.settings(security), {})
        for attempt in (knock(brokers), ensure_topics(brokers, specs()), describe_topics(brokers, specs())):
            with pytest.raises(AccessRefused) as refused:
                await attempt
            assert re.search(expected, str(refused.value)), refused.value
            assert "\n" not in str(refused.value)
        with pytest.raises(AccessRefused, match=expected):
            [record async for record in read_log(brokers, "t")]


@pytest.mark.kafka
async def test_a_broker_under_another_name_than_its_certificate_is_not_trusted(secured: SecuredKafka) -> None:
    kafka = secured.settings(secured.by_user("router"))
    elsewhere = kafka.model_copy(update={"bootstrap": kafka.bootstrap.replace(HOST, "localhost")})
    with pytest.raises(AccessRefused, match=r"not trusted.*a name that is in its certificate"):
        await knock(cluster_of(elsewhere, {}))


@pytest.mark.kafka
async def test_a_listener_of_another_protocol_is_named_as_such(secured: SecuredKafka) -> None:
    plain = secured.settings(secured.by_user("router")).model_copy(update={"bootstrap": secured.plain})
    with pytest.raises(
        ConnectionError, match=r"did not answer as a SASL_SSL listener of Kafka \(kafka\.security\.protocol"
    ):
        await knock(cluster_of(plain, {}))
    with pytest.raises(BusUnavailable, match=r"wants TLS or a user needs kafka\.security"):
        await describe_topics(secured.sasl, specs(), timeout_s=3)


@pytest.mark.kafka
async def test_telemetry_and_snapshots_of_a_wrong_user_are_one_line_each(
    secured: SecuredKafka, caplog: pytest.LogCaptureFixture
) -> None:
    brokers = cluster_of(secured.settings(secured.by_user("unknown")), {})
    with caplog.at_level(logging.INFO):
        async with Emitter(brokers, "t", "r", partitions=1) as emitter, SnapshotReader(brokers, "t", 1, print):
            emitter.add(Outcome(instance="a", kind="ok"), 0)
            assert not await emitter.flush(6)
            assert emitter.link.failures > 2
            emitter.buffered = 0  # nobody will take it, so do not wait for it at the end
    assert sorted(record.getMessage().split(" at ")[0] for record in caplog.records) == [
        "cannot read t.snapshots",
        "cannot write to t.telemetry",
    ]
    assert all("refused user 'unknown'" in record.getMessage() for record in caplog.records)


def settings_of(**security: Any) -> KafkaSettings:
    return KafkaSettings.model_validate({"security": security})


@pytest.mark.parametrize(
    ("key", "text"),
    [("ca_file", None), ("ca_file", "no certificate"), ("cert_file", None), ("cert_file", "no certificate")],
)
def test_a_file_that_is_of_no_use_is_named_with_its_key(tmp_path: Path, key: str, text: str | None) -> None:
    path = tmp_path / "file.pem"
    if text is not None:
        path.write_text(text)
    files = {key: str(path)} | ({"key_file": str(path)} if key == "cert_file" else {})
    with pytest.raises(SettingsError) as error:
        cluster_of(settings_of(protocol="SSL", **files), {})
    (problem,) = error.value.problems
    assert (problem.source, problem.key) == (f"file {path}", f"kafka.security.{key}")


def test_a_key_with_a_password_is_opened_by_it_and_by_no_other(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.certify("client")
    locked = authority.lock(key, "key pass")
    files = {"cert_file": str(certificate), "key_file": str(locked), "key_password_env": "KEY_PASSWORD"}
    assert cluster_of(settings_of(protocol="SSL", **files), {"KEY_PASSWORD": "key pass"})
    with pytest.raises(SettingsError, match=r"kafka\.security\.cert_file.*key_password"):
        cluster_of(settings_of(protocol="SSL", **files), {"KEY_PASSWORD": "other"})


def test_no_password_is_printed(tmp_path: Path) -> None:
    security = {"protocol": "SASL_PLAINTEXT", "username": "u", "password_env": "P"}
    brokers = cluster_of(settings_of(**security), {"P": PASSWORD})
    assert PASSWORD not in f"{brokers} {brokers!r} {settings_of(**security)!r}"
    assert str(brokers) == "127.0.0.1:9092"
