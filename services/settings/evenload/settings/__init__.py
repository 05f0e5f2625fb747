"""The settings of Evenload: one YAML file, the environment and the command line, checked at start.

Start reading at `models.py` (the sections) and `load.py` (where they come from).
"""

from evenload.settings.base import LogLevel, LogSettings
from evenload.settings.discovery import DiscoverySettings, SourceSettings
from evenload.settings.instances import InstanceSettings
from evenload.settings.kafka import KafkaSecrets, KafkaSecuritySettings, KafkaSettings, kafka_secrets
from evenload.settings.load import backend_keys, config_path, load_settings
from evenload.settings.models import (
    BrokerSettings,
    CollectorSettings,
    RouterSettings,
    ScorerSettings,
    Settings,
)
from evenload.settings.pools import (
    ANY_MODEL,
    AdmissionSettings,
    PolicyName,
    PoolSettings,
    RetrySettings,
    ScoringSettings,
    TimeoutSettings,
)
from evenload.settings.problems import Problem, SettingsError
from evenload.settings.reference import reference
from evenload.settings.spool import SpoolSettings

__all__ = [
    "ANY_MODEL",
    "AdmissionSettings",
    "BrokerSettings",
    "CollectorSettings",
    "DiscoverySettings",
    "InstanceSettings",
    "KafkaSecrets",
    "KafkaSecuritySettings",
    "KafkaSettings",
    "LogLevel",
    "LogSettings",
    "PolicyName",
    "PoolSettings",
    "Problem",
    "RetrySettings",
    "RouterSettings",
    "ScorerSettings",
    "ScoringSettings",
    "Settings",
    "SettingsError",
    "SourceSettings",
    "SpoolSettings",
    "TimeoutSettings",
    "backend_keys",
    "config_path",
    "kafka_secrets",
    "load_settings",
    "reference",
]
