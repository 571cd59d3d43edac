"""What two CPU cores can say in under three minutes: `make bench`. One thread, so that other work disturbs it little.

python benchmarks/cpu.py [--only NAME ...] [--out figures.json]
python benchmarks/cpu.py --peers [--out figures.json]    all cores, against Flower's simulation: see peers.py
"""

from __future__ import annotations

import sys

SUBSET = ("fedavg-20", "perfedavg-20", "fedthe-20", "pfl-cifar10", "adapters-per-sample", "adapters-per-batch", "zipf")

if __name__ == "__main__":
    if "--peers" in sys.argv:
        import peers

        peers.main()
    else:
        import suite

        suite.main("quick", __doc__, SUBSET)
