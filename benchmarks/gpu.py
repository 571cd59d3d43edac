"""The whole GPU set in one call, within a limit of nine minutes, with torch and numpy alone.

    PYTHONPATH=src python benchmarks/gpu.py --out figures.json
    PYTHONPATH=src python benchmarks/gpu.py --only fedavg-20 profile --out figures.json
    python benchmarks/gpu.py --smoke                    # everything, tiny, on a CPU

Every benchmark checks that results agree before it compares times, and the file is written anew after each. A copy of
the tree without its history takes its commit from the variable ACCLIMATE_COMMIT. `benchmarks/tables.py` makes tables
of the file.
"""

from __future__ import annotations

import suite

if __name__ == "__main__":
    suite.main("full", __doc__)
