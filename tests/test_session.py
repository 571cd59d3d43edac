"""What a session of tests leaves behind: none of the keys that its tests made."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from acclimate.store import secrets

WHILE_COLLECTED = secrets.place()
TESTS = Path(__file__).parent
MAKES_A_KEY = """
from pathlib import Path

from acclimate.store import secrets


def test_a_key_is_kept():
    path = secrets.place() / "a.key"
    assert len(secrets.kept(path)) == 32
    Path(__file__).with_name("where").write_text(f"{path.parent} {path.parent.stat().st_mode} {path.stat().st_mode}")
"""


@pytest.mark.parametrize("how", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_keys_of_a_session_are_gone_when_it_ends(how, tmp_path):
    (tmp_path / "test_key.py").write_text(MAKES_A_KEY)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    path = os.pathsep.join(filter(None, [str(TESTS.parent / "src"), str(TESTS), os.environ.get("PYTHONPATH")]))
    words = ["-c", os.devnull, f"--rootdir={tmp_path}", "-p", "no:cacheprovider", "-p", "conftest", *how, "test_key.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(temporary), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    where, folder, file = (tmp_path / "where").read_text().split()
    assert (stat.S_IMODE(int(folder)), stat.S_IMODE(int(file))) == (0o700, 0o600)
    assert not Path(where).exists() and not list(tmp_path.rglob("*.key"))
    (kept,) = temporary.iterdir()  # by pytest, which removes what killed sessions left there
    assert kept.name.startswith("pytest-of-") and kept in Path(where).parents


def test_no_key_is_made_before_a_session_has_its_folder():
    assert WHILE_COLLECTED == Path(os.devnull) != secrets.place()
    with pytest.raises(OSError, match=os.devnull):
        secrets.kept(WHILE_COLLECTED / "a.key")
