"""The app folder of the examples: Flower takes it, and in Flower's simulation it gives the numbers of Serial."""

import io
import json
import os
import subprocess
import sys
import tomllib
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the fleet needs Flower: pip install 'acclimate[flower]'")

from flwr.app import Context, RecordDict

from acclimate.backends import Serial
from acclimate.backends.flower.engine import Flower
from acclimate.experiment.settings import expand
from acclimate.fleet import app_folder, client_app
from acclimate.fleet.server_app import prepared
from acclimate.running import run as api
from acclimate.version import __version__

ROOT = Path(__file__).parents[2]
APP = ROOT / "examples" / "flower-app"
PYPROJECT = tomllib.loads((APP / "pyproject.toml").read_text())
CONFIG = PYPROJECT["tool"]["flwr"]["app"]["config"]


def test_flower_builds_the_app_and_the_app_names_what_exists():
    from flwr.cli.build import build_fab_from_disk
    from flwr.supercore.object_ref import validate

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a package that Flower uses
        packed = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(APP)))
    inside = {name for name in packed.namelist() if not name.startswith(".info/")}
    shims = {f"acclimate_app/{name}.py" for name in ("__init__", "client", "server")}
    assert inside == {"LICENSE", "README.md", "pyproject.toml", *shims}
    assert (APP / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    for name in PYPROJECT["tool"]["flwr"]["app"]["components"].values():
        assert validate(name, project_dir=APP) == (True, None)


def test_the_example_is_what_fleet_writes(tmp_path):
    """Two places have the app: the folder that `fleet init` writes, and the example. They must not drift apart."""
    made = app_folder.write_app(tmp_path / "app")
    for shim in (made / "acclimate_app").iterdir():
        assert (APP / "acclimate_app" / shim.name).read_text() == shim.read_text()
    ours = tomllib.loads((made / "pyproject.toml").read_text())
    assert ours["tool"]["flwr"]["app"]["config"].keys() == CONFIG.keys()
    assert ours["tool"]["flwr"]["app"]["components"] == PYPROJECT["tool"]["flwr"]["app"]["components"]
    assert f"acclimate=={__version__}" in PYPROJECT["project"]["dependencies"]
    assert PYPROJECT["tool"]["flwr"]["app"]["flwr-version-target"] == app_folder.FLOWER
    (experiment,) = expand(CONFIG["settings"].split())
    assert isinstance(experiment.backend, Flower)


def test_in_a_simulation_the_user_says_where_nodes_keep_things_and_the_server_does_not(tmp_path, monkeypatch):
    config = {"partition-id": 1, "num-partitions": 3}
    context = Context(1, 1, config, RecordDict(), {"run-folder": "/elsewhere", "site": "/elsewhere"})
    monkeypatch.setenv("ACCLIMATE_SITES", str(tmp_path))
    place = client_app.place_of(context)
    assert (place.node, place.nodes, place.folder, place.data) == (1, 3, tmp_path / "001", None)
    monkeypatch.delenv("ACCLIMATE_SITES")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert client_app.place_of(context).folder == tmp_path / "state" / "acclimate" / "sites" / "001"
    with pytest.raises(ValueError, match="lacks node, nodes, site"):
        client_app.place_of(Context(1, 1, {}, RecordDict(), {}))


SIMULATION = """
import json, sys
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from acclimate.fleet import server_app
from acclimate.fleet.client_app import app as client

server = ServerApp()
server.main()(lambda grid, context: server_app.conduct(grid, json.loads(sys.argv[1])))
run_simulation(server, client, 2, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_app_in_flowers_simulation_gives_the_numbers_of_serial(tmp_path):
    pytest.importorskip("ray")
    run = prepared(tmp_path / "run", CONFIG["settings"] + " rounds=2 backend.patience=300")
    env = {**os.environ, "ACCLIMATE_SITES": str(tmp_path / "sites"), "FLWR_TELEMETRY_ENABLED": "0"}
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(Path(api.__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    given = json.dumps({**CONFIG, "run-folder": str(run.path)})
    command = [sys.executable, "-c", SIMULATION, given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    ours = run.load()["results"]
    api.run(replace(run.experiment(), backend=Serial()), tmp_path / "serial")
    theirs = json.loads((tmp_path / "serial" / "results.json").read_text())
    assert ours["faults"] == [] and len(ours["table"]) == len(theirs["table"]) >= 8
    for row, other in zip(ours["table"], theirs["table"], strict=True):
        assert (row["adapter"], row["stream"]) == (other["adapter"], other["stream"])
        assert row["per_client"] == pytest.approx(other["per_client"], abs=1e-6)
    assert {p.name for p in (tmp_path / "sites").iterdir()} == {"000", "001"}
