"""A real Apache Kafka on this machine, by pip alone. Start reading in `broker.py`."""

from evenload.broker.broker import DEFAULT_FOLDER, Broker
from evenload.broker.errors import (
    BrokerError,
    BrokerPartsMissingError,
    BrokerStartError,
    DataFolderBusyError,
    JarMismatchError,
)

__all__ = [
    "DEFAULT_FOLDER",
    "Broker",
    "BrokerError",
    "BrokerPartsMissingError",
    "BrokerStartError",
    "DataFolderBusyError",
    "JarMismatchError",
]
