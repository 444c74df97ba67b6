"""The version of the installed distribution."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("mega-framework")
except PackageNotFoundError:
    __version__ = "0+unknown"
