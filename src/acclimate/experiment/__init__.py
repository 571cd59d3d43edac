"""What is run, as one record: the experiment, its spellings in files and settings, and the catalogue of names."""

from .encoding import ConfigError, decode, encode
from .record import SCHEMA, Experiment, checked, dumps, loads

__all__ = ["SCHEMA", "ConfigError", "Experiment", "checked", "decode", "dumps", "encode", "loads"]
