"""What can go wrong with the embedded broker. Every message says what to do next."""


class BrokerError(Exception):
    """Any failure of the embedded broker; the base of the others."""


class BrokerPartsMissingError(BrokerError):
    """Kafka's jars or the Java runtime cannot be had (not installed, or offline with an empty cache)."""


class JarMismatchError(BrokerError):
    """A resolved jar is not the pinned one: other bytes, missing, or not on the list."""


class BrokerStartError(BrokerError):
    """Kafka ended early or never answered; the message ends with the last lines of its log."""


class DataFolderBusyError(BrokerError):
    """Another broker is running on the same data folder."""
