"""Which instances there are: files, DNS, Kubernetes and operators say so, while everything runs.

Start reading at `members.py` (what changes mean; pure) and `discovery.py` (how sources are followed). Routers and
collectors run the same code; docs/discovery.md says who does what with it.
"""
