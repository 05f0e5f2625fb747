"""What engines say of themselves: from the bytes of a page to gauges, one pure module per engine.

Reading order: `page.py` (the result), `scan.py` (finding lines), `vllm.py` (one engine), `adapters.py` (which is
which).
"""
