"""The demo's parts: simulated engines over HTTP, workloads and an open-loop load generator."""
