"""What is run, as one record: the experiment, its spellings in files and settings, and the catalogue of names."""

from .encoding import ConfigError, decode, encode
from .record import Experiment, dumps, loads

__all__ = ["ConfigError", "Experiment", "decode", "dumps", "encode", "loads"]
