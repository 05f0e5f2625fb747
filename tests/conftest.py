"""Fixtures for every test; see kafka_fixtures.py and secured_kafka.py for what they give."""

pytest_plugins = ["tests.kafka_fixtures", "tests.secured_kafka"]
