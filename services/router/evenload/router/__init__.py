"""The router's shell: the HTTP data plane and the app round it.

Start reading at `proxy.py`; what it needs from the routing side is in `ports.py`.
"""
