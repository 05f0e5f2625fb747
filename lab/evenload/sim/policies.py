"""Naming a policy with constants of its own: `predictive`, or `predictive:candidates=4,probe_share=0.01`.

What follows the colon are keyword arguments of the policy's class: whole numbers, numbers, `true`, `false`, or text.
"""

from evenload.routing import POLICIES, Policy

ORACLE = "oracle"


def policy_name(spec: str) -> str:
    """Return the name without constants."""
    return spec.partition(":")[0]


def make_policy(spec: str) -> Policy:
    """Return the policy that a specification names; `oracle` gives a stand-in that is never asked.

    Raises:
        ValueError: no such policy, or it does not take these constants.
    """
    name, _, rest = spec.partition(":")
    if name == ORACLE:
        return POLICIES["random"]()
    if name not in POLICIES:
        raise ValueError(f"no policy {name!r}; there are {', '.join(POLICIES)}, and {ORACLE}")
    constants: dict[str, object] = {}
    for item in filter(None, rest.split(",")):
        key, equals, text = item.partition("=")
        if not equals:
            raise ValueError(f"policy {spec!r}: {item!r} is not key=value")
        constants[key] = _value(text)
    try:
        return POLICIES[name](**constants)
    except TypeError as error:
        raise ValueError(f"policy {spec!r}: {error}") from None


def _value(text: str) -> object:
    if text in {"true", "false"}:
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
