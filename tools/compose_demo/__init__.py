"""Load through the compose stack's proxy, a killed router, a killed scorer, and a verdict: `make compose-demo`.

`verdict.py` says what has to hold (pure), `traffic.py` sends requests, `stack.py` looks at the stack and hurts it.
"""
