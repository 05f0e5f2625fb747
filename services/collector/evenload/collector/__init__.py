"""The collector: asks every engine how it is, four times a second, and tells the log.

Reading order: `engines/` (what a page says), `watch.py` (what that means for an instance), `poller.py` (asking),
`main.py` (the process).
"""
