"""The one version number of Evenload."""

__version__ = "0.1.0"
