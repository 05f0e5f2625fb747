"""Routing: pure. What a router believes, what it has under way, and whom it picks.

Reading order: `policy.py` (the one-method interface), `view.py` (snapshot + own tail), `leases.py` (own load),
`p2c.py`, then one file per policy.
"""

from evenload.routing.c3 import C3
from evenload.routing.dynamo import Dynamo
from evenload.routing.envoy import EnvoyLeastRequest
from evenload.routing.exclusion import eligible
from evenload.routing.health import Health
from evenload.routing.health_ramp import HealthRamp
from evenload.routing.leases import Lease, LeaseBook
from evenload.routing.least_awaiting import LeastAwaiting
from evenload.routing.least_connections import LeastConnections
from evenload.routing.llm_d import LlmD
from evenload.routing.log_clock import LogClock
from evenload.routing.p2c import P2cInFlight
from evenload.routing.peak_ewma import PeakEwma
from evenload.routing.peak_ewma_10s import PeakEwma10s
from evenload.routing.peak_ewma_decay import PeakEwmaDecay
from evenload.routing.peak_ewma_penalty import PeakEwmaPenalty
from evenload.routing.policy import Choice, InstanceView, Policy, RecordedRng, ReplayedRng, Request, Rng
from evenload.routing.predictive import Predictive
from evenload.routing.prequal import Prequal
from evenload.routing.round_robin import RoundRobin
from evenload.routing.sglang_cache_aware import SglangCacheAware
from evenload.routing.uniform import Uniform
from evenload.routing.view import FleetView
from evenload.routing.vllm_dp import VllmDp

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Health,
        HealthRamp,
        PeakEwma,
        PeakEwmaDecay,
        RoundRobin,
        Uniform,
        LeastConnections,
        P2cInFlight,
        LeastAwaiting,
        PeakEwma10s,
        PeakEwmaPenalty,
        EnvoyLeastRequest,
        Prequal,
        C3,
        LlmD,
        VllmDp,
        Dynamo,
        SglangCacheAware,
        Predictive,
    )
}

__all__ = [
    "POLICIES",
    "Choice",
    "FleetView",
    "InstanceView",
    "Lease",
    "LeaseBook",
    "LogClock",
    "Policy",
    "RecordedRng",
    "ReplayedRng",
    "Request",
    "Rng",
    "eligible",
]
