"""acclimate: federated learning that keeps adapting after training.

    import acclimate as ac
    fit = ac.train(ac.Experiment(method=ac.methods.FedAvg(), rounds=5))
    print(ac.evaluate(fit, adapters=[ac.adapters.NoAdapt(), ac.adapters.Tent()]))

Names load on first use, so that `import acclimate` and `acclimate --help` need no torch.
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from . import adapters, backends, core, data, eval, filters, methods, models, ops, personal, shifts
    from .core import local, optim, rng, tree
    from .core.adapter import Adapter
    from .core.filter import Filter
    from .core.local import Work
    from .core.message import Gather, Mean, Sum
    from .core.method import Method
    from .core.nn.inputs import TokenIds
    from .core.nn.wrapped import wrap
    from .core.personal import Personalizer
    from .core.task import Out, Task
    from .eval.table import Table
    from .experiment.names import allow
    from .experiment.record import Experiment
    from .live import Answer, Joined, Live, load_joined, load_live
    from .running.compare import Comparison, compare
    from .running.estimates import estimates
    from .running.join import join
    from .running.run import (
        Fit,
        Interrupted,
        evaluate,
        evaluate_together,
        load,
        report,
        resume,
        run,
        run_all,
        traces,
        train,
        train_together,
    )
    from .running.select import select
    from .running.watch import Watch

_MODULES = ("adapters", "backends", "core", "data", "eval", "filters", "methods", "models", "ops", "personal", "shifts")
_NAMES = {
    "running.run": (
        "Fit",
        "Interrupted",
        "evaluate",
        "evaluate_together",
        "load",
        "report",
        "resume",
        "run",
        "run_all",
        "traces",
        "train",
        "train_together",
    ),
    "running.compare": ("Comparison", "compare"),
    "running.estimates": ("estimates",),
    "experiment.names": ("allow",),
    "experiment.record": ("Experiment",),
    "core": ("local", "optim", "rng", "tree"),
    "core.adapter": ("Adapter",),
    "core.filter": ("Filter",),
    "core.local": ("Work",),
    "core.message": ("Gather", "Mean", "Sum"),
    "core.method": ("Method",),
    "core.nn.inputs": ("TokenIds",),
    "core.nn.wrapped": ("wrap",),
    "core.personal": ("Personalizer",),
    "core.task": ("Out", "Task"),
    "eval.table": ("Table",),
    "live": ("Answer", "Joined", "Live", "load_joined", "load_live"),
    "running.join": ("join",),
    "running.select": ("select",),
    "running.watch": ("Watch",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Adapter",
    "Answer",
    "Comparison",
    "Experiment",
    "Filter",
    "Fit",
    "Gather",
    "Interrupted",
    "Joined",
    "Live",
    "Mean",
    "Method",
    "Out",
    "Personalizer",
    "Sum",
    "Table",
    "Task",
    "TokenIds",
    "Watch",
    "Work",
    "__version__",
    "adapters",
    "allow",
    "backends",
    "compare",
    "core",
    "data",
    "estimates",
    "eval",
    "evaluate",
    "evaluate_together",
    "filters",
    "join",
    "load",
    "load_joined",
    "load_live",
    "local",
    "methods",
    "models",
    "ops",
    "optim",
    "personal",
    "report",
    "resume",
    "rng",
    "run",
    "run_all",
    "select",
    "shifts",
    "traces",
    "train",
    "train_together",
    "tree",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _HOME:
        home = importlib.import_module(f".{_HOME[name]}", __name__)
        value = getattr(home, name, None)
        value = value if value is not None else importlib.import_module(f".{_HOME[name]}.{name}", __name__)
        globals()[name] = value
        return value
    near = difflib.get_close_matches(name, __all__, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise AttributeError(f"module 'acclimate' has no attribute '{name}'{hint}")


def __dir__() -> list[str]:
    return __all__
