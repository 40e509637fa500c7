"""The version of Sluice."""

__version__ = "0.1.0"
