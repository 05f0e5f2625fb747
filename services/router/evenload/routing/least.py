"""The least of all costs, ties at random: exact, and herding when several routers see the same stale figures."""

from evenload.routing.policy import Choice, Rng


def least(costs: list[float], rng: Rng, reason: str = "least") -> Choice:
    """Return the choice of the least cost."""
    lowest = min(costs)
    ties = [index for index, cost in enumerate(costs) if cost == lowest]
    index = ties[int(rng.random() * len(ties))] if len(ties) > 1 else ties[0]
    return Choice(index=index, reason=reason, probability=1.0 / len(ties), costs=costs)
