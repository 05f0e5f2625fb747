"""The simulated fleet, pure: no event loop, no clock, no entropy of its own. Start reading in `engine.py`."""
