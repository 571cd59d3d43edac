"""The leaderboard `brfl-v1`: frozen tracks, submissions as one JSON file each, and a page made of them.

`python -m acclimate.leaderboard` needs torch, numpy and safetensors alone.
"""

from .submission import Unfit, check, submission
from .tracks import TRACKS, Track, frozen, track

__all__ = ["TRACKS", "Track", "Unfit", "check", "frozen", "submission", "track"]
