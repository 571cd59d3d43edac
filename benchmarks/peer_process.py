"""One federated round after the other in another library, in a process and, if need be, a Python of its own.

`peers.py` starts this script; it imports nothing of acclimate. It gets the examples and the first model as a file, does
one round for every line that it reads, and answers with the seconds that it took. All that belongs to the peer (its
loaders, its pool of processes, its averaging) is the peer's own code.

    python benchmarks/peer_process.py {blazefl,pfllib} WORK.pt LAST.pt [--folder PFLlib]
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

State = dict[str, Tensor]


class Net(nn.Module):
    """The two-layer CNN of the papers as anybody would write it, with the names that acclimate gives its layers."""

    def __init__(self) -> None:
        super().__init__()
        first, second = (nn.Conv2d(3, 32, 5), nn.MaxPool2d(2), nn.ReLU()), (nn.Conv2d(32, 64, 5), nn.MaxPool2d(2))
        self.body = nn.Sequential(*first, *second, nn.ReLU(), nn.Flatten(), nn.Linear(1600, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.body(x))
        return logits


class Examples:
    """What BlazeFL calls a partitioned data set: every client's examples, in memory, as a model wants them."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.sets: list[Any] = [torch.utils.data.TensorDataset(*own) for own in zip(x, y, strict=True)]

    def get_dataset(self, type_: str, cid: int | None) -> Any:
        """A client's examples."""
        return self.sets[cid or 0]

    def set_dataset(self, type_: str, cid: int | None, dataset: Any) -> None:
        """Keep what a client has made of them."""
        self.sets[cid or 0] = dataset

    def get_dataloader(self, type_: str, cid: int | None, batch_size: int | None, generator: Any) -> Any:
        """Batches of a client's examples, in a new order each time."""
        return torch.utils.data.DataLoader(self.get_dataset(type_, cid), batch_size, shuffle=True, generator=generator)


class Selector:
    """What BlazeFL asks for models."""

    def select_model(self, model_name: str) -> nn.Module:
        """A fresh model."""
        return Net()


def blazefl(work: dict[str, Any], folder: Path | None) -> tuple[Callable[[], None], Callable[[], State], str]:
    """A round, the model, and the version. Clients run in as many processes as there are cores, one thread each."""
    from importlib.metadata import version

    from blazefl.contrib import fedavg
    from blazefl.core import IPCMode

    torch.set_num_threads(1)
    data, clients, place = Examples(work["x"], work["y"]), len(work["x"]), Path(tempfile.mkdtemp())
    common = {"model_selector": Selector(), "model_name": "cnn", "dataset": data, "device": "cpu", "seed": 0}
    server = fedavg.FedAvgBaseServerHandler(
        **common, global_round=10**6, num_clients=clients, sample_ratio=1.0, batch_size=work["batch"]
    )
    server.model.load_state_dict(work["first"])
    trainer = fedavg.FedAvgProcessPoolClientTrainer(
        **common,
        share_dir=place / "share",
        state_dir=place / "state",
        num_clients=clients,
        epochs=work["epochs"],
        batch_size=work["batch"],
        lr=work["lr"],
        num_parallels=work["cores"],
        ipc_mode=IPCMode.SHARED_MEMORY,
    )
    trainer.progress_fn = lambda jobs: jobs

    def one() -> None:
        trainer.local_process(server.downlink_package(), server.sample_clients())
        for package in trainer.uplink_package():
            server.load(package)

    return one, server.model.state_dict, version("blazefl")


PFLLIB = {
    "algorithm": "FedAvg",
    "dataset": "in memory",
    "device": "cpu",
    "num_classes": 10,
    "learning_rate_decay": False,
    "learning_rate_decay_gamma": 1.0,
    "join_ratio": 1.0,
    "random_join_ratio": False,
    "save_folder_name": "items",
    "goal": "benchmark",
    "time_select": False,
    "time_threthold": 1e9,
    "top_cnt": 100,
    "auto_break": False,
    "eval_gap": 1,
    "client_drop_rate": 0.0,
    "train_slow_rate": 0.0,
    "send_slow_rate": 0.0,
    "dlg_eval": False,
    "dlg_gap": 100,
    "batch_num_per_client": 2,
    "num_new_clients": 0,
    "fine_tuning_epoch_new": 0,
    "few_shot": 0,
}
"""What PFLlib's own command line would give its server and clients."""


def pfllib(work: dict[str, Any], folder: Path | None) -> tuple[Callable[[], None], Callable[[], State], str]:
    """As `blazefl`, with a folder that holds PFLlib's repository. Its clients run one after the other, on all cores.

    PFLlib reads a client's examples from disk in every round; here they come from memory, which favours it. It leaves
    out an epoch's last, smaller batch.
    """
    sys.path.insert(0, str((folder or Path(".")) / "system"))
    from flcore.clients import clientbase
    from flcore.servers import serverbase
    from flcore.servers.serveravg import FedAvg

    torch.set_num_threads(work["cores"])

    def read(dataset: str, idx: int, *more: Any, **others: Any) -> list[tuple[Tensor, Tensor]]:
        return list(zip(work["x"][idx], work["y"][idx], strict=True))

    clientbase.read_client_data = serverbase.read_client_data = read
    model = Net()
    model.load_state_dict(work["first"])
    args = SimpleNamespace(
        **PFLLIB,
        model=model,
        num_clients=len(work["x"]),
        batch_size=work["batch"],
        local_learning_rate=work["lr"],
        local_epochs=work["epochs"],
        global_rounds=10**6,
    )
    server = FedAvg(args, 0)

    def one() -> None:
        server.selected_clients = server.select_clients()
        server.send_models()
        for client in server.selected_clients:
            client.train()
        server.receive_models()
        server.aggregate_parameters()

    return one, lambda: server.global_model.state_dict(), "a folder"


def used() -> float:
    """CPU seconds of this process and of those that it started and that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in both)


def main() -> None:
    """Answer every line with a round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=("blazefl", "pfllib"))
    parser.add_argument("work", type=Path)
    parser.add_argument("last", type=Path)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    answers, sys.stdout = sys.stdout, sys.stderr  # what a peer prints is no answer

    def say(**what: Any) -> None:
        print(json.dumps(what), file=answers, flush=True)

    try:
        one, state, version = globals()[args.peer](torch.load(args.work, weights_only=True), args.folder)
    except ImportError as error:
        return say(refused=f"{args.peer} is not there: {error}")
    say(version=version, python=sys.version.split()[0], torch=torch.__version__)
    for _ in sys.stdin:
        began, before = time.perf_counter(), used()
        one()
        say(seconds=time.perf_counter() - began, cpu_seconds=used() - before)
        torch.save({k: v.cpu().clone() for k, v in state().items()}, args.last)
    return None


if __name__ == "__main__":
    main()
