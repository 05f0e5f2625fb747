"""Telemetry on disk while Kafka is away. Synchronous: `overflow.py` calls it from a thread of its own.

Start with `segment.py` (the file format), then `partition.py` (the files of one partition), then `folder.py`.
"""
