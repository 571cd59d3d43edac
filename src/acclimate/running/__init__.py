"""From an experiment to a finished run: build, check, train, evaluate, join, compare, track.

The package is not called `run` because `acclimate.run` is a function.
"""
