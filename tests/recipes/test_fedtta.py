"""FedTTA's recipes: what the paper states holds for every row."""

from acclimate.core.message import Mean
from acclimate.recipes import fedtta


def test_clients_count_as_one_in_every_row():
    for row, line in fedtta.lines(fedtta.SMOKE_RATES).items():
        means = [rule.by for rule in line.method.record.uplink.values() if isinstance(rule, Mean)]
        assert set(means) == ({"share"} if row == "AFL" else {None}), row
