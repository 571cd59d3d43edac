"""What two CPU cores can say in under three minutes: `make bench`. One thread, so that other work disturbs it little.

python benchmarks/cpu.py [--only NAME ...] [--out figures.json]
"""

from __future__ import annotations

import suite

SUBSET = ("fedavg-20", "perfedavg-20", "fedthe-20", "pfl-cifar10", "adapters-per-sample", "adapters-per-batch", "zipf")

if __name__ == "__main__":
    suite.main("quick", __doc__, SUBSET)
