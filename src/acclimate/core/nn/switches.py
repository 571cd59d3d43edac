"""Which of the newer, faster ways are used: the variable ACCLIMATE_WITH names them, with commas between.

`implicit` are convolutions that gather patches inside the product (`implicit.py`), `norms` the kernels of norm layers
(`norms.py`). They agree with what they replace; as long as their speed is not measured on whole rounds, and as two
fresh runs may choose different tiles and round differently, nobody gets them without asking.
"""

from __future__ import annotations

import os
from typing import Literal

WITH = "ACCLIMATE_WITH"
"""The environment variable that names ways to use."""


def on(way: Literal["implicit", "norms"]) -> bool:
    """Whether this way may be used."""
    return way in os.environ.get(WITH, "").split(",")
