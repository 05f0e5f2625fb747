"""Where requests that begin alike meet: rendezvous hashing (Thaler and Ravishankar 1998), the same at every router.

    home = the candidate whose name, mixed with the prefix, gives the greatest number

Routers that share nothing so agree where a conversation belongs, and when a candidate comes or goes only its own
conversations move. What it does not handle: load. The home is a wish, for the policy to weigh.
"""

from collections.abc import Sequence
from zlib import crc32

from evenload.routing.policy import InstanceView

ODD, MIX_A, MIX_B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # splitmix64's
MASK = 0xFFFFFFFFFFFFFFFF


def home_of(candidates: Sequence[InstanceView], prefix: int) -> int:
    """Return the index of the candidate where prompts with this prefix belong; `prefix` is a hash, not 0."""
    mixed = prefix * ODD & MASK
    home, most = 0, -1
    for index, view in enumerate(candidates):
        number = crc32(view.instance.encode()) ^ mixed
        number = (number ^ number >> 30) * MIX_A & MASK
        number = (number ^ number >> 27) * MIX_B & MASK
        if number > most:
            home, most = index, number
    return home
