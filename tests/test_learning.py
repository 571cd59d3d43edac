"""What the papers claim, on the embedded world: means over three seeds, a few clients, minutes on a laptop."""

import acclimate as ac
from acclimate.adapters import THE, NoAdapt
from acclimate.core.optim import SGD
from acclimate.personal import FineTune
from acclimate.shifts import Original, OutOfClient

MODEL = ac.models.CNN(widths=(16, 32), norm="group")
RATE = SGD(lr=0.05)


def accuracies(method, adapter, personal, seed):
    streams = (Original(), OutOfClient())
    e = ac.Experiment(model=MODEL, method=method, rounds=10, eval_every=10, seed=seed, streams=streams)
    table = ac.evaluate(ac.train(e), adapters=[adapter], personal=personal)
    return [table.accuracy(stream=s) for s in ("original", "out-of-client")]


def test_the_keeps_what_fine_tuning_loses():
    """Dir(0.1) digits: far better than FedAvg+FT on other clients' samples, and as good on one's own."""
    gains = []
    for seed in range(3):
        tuned = accuracies(ac.methods.FedAvg(opt=RATE), NoAdapt(), FineTune(opt=RATE), seed)
        mixed = accuracies(ac.methods.FedTHE(opt=RATE, head_opt=RATE), THE(), None, seed)
        gains.append([m - t for m, t in zip(mixed, tuned, strict=True)])
    original, out_of_client = (sum(g) / 3 for g in zip(*gains, strict=True))
    assert out_of_client >= 0.10
    assert original >= -0.03
