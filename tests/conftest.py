"""Fixtures for every test; see kafka_fixtures.py for what they give."""

pytest_plugins = ["tests.kafka_fixtures"]
