"""Which of the faster ways are left out: the variable ACCLIMATE_WITHOUT names them, with commas between.

`implicit` are convolutions that gather patches inside the product (`implicit.py`), `norms` the kernels of norm layers
(`norms.py`). Without them the ways that they replaced are used, so that whole rounds can be compared.
"""

from __future__ import annotations

import os
from typing import Literal

WITHOUT = "ACCLIMATE_WITHOUT"
"""The environment variable that names ways to do without."""


def on(way: Literal["implicit", "norms"]) -> bool:
    """Whether this way may be used."""
    return way not in os.environ.get(WITHOUT, "").split(",")
