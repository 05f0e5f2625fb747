"""Does a Kafka answer? One Metadata request over a plain socket, without a client library."""

import socket
import struct

_METADATA, _VERSION, _CORRELATION = 3, 4, 1
_RESPONSE_BYTES_MAX = 1 << 20


def brokers_known(host: str, port: int, *, timeout_s: float = 2.0) -> int:
    """Number of live brokers in the metadata of the Kafka at this address; it serves clients when that is not zero.

    Raises:
        OSError: nothing listens there, it closed the connection, or it gave no answer in time.
    """
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        # Header: api key, version, correlation id, null client id. Body: no topics (an empty array), no auto-creation.
        request = struct.pack(">hhih", _METADATA, _VERSION, _CORRELATION, -1) + struct.pack(">i?", 0, False)
        connection.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", _receive(connection, 4))
        if not 12 <= length <= _RESPONSE_BYTES_MAX:
            raise OSError(f"{host}:{port} does not speak Kafka's protocol")
        correlation, _throttle_ms, brokers = struct.unpack(">iii", _receive(connection, length)[:12])
    if correlation != _CORRELATION:
        raise OSError(f"{host}:{port} does not speak Kafka's protocol")
    return int(brokers)


def _receive(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        chunk = connection.recv(length - len(data))
        if not chunk:
            raise ConnectionResetError("closed before the answer was complete")
        data += chunk
    return bytes(data)
