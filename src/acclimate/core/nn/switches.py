"""Which of the faster ways are left out: the variable ACCLIMATE_WITHOUT names them, with commas between.

`implicit` are convolutions that gather patches inside the product (`implicit.py`), `depthwise` those of every channel
by itself (`depthwise.py`), `norms` the kernels of norm layers (`norms.py`), `linear` that of long sums in linear layers
(`linear.py`). They agree with what they replace, and are used
wherever they are faster. To leave one out tells whether a difference comes from it.
"""

from __future__ import annotations

import os
from typing import Literal

WITHOUT = "ACCLIMATE_WITHOUT"
"""The environment variable that names ways not to use."""


def on(way: Literal["implicit", "depthwise", "norms", "linear"]) -> bool:
    """Whether this way may be used."""
    return way not in os.environ.get(WITHOUT, "").split(",")
