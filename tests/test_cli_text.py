"""A newcomer with texts, as they type it: one command gives a table and a report, and a page shows the texts."""

import html

import pytest

from acclimate import data
from acclimate.ops.text import decode

pytestmark = pytest.mark.filterwarnings("ignore:.*click.*:DeprecationWarning")  # typer imports a name click renamed
NAMED = ["data=text", "data.file=reviews.csv", "data.text=body", "data.label=stars", "data.client=shop"]


@pytest.fixture
def here(here, no_data, tmp_path):
    """The command in this process, in a folder of its own with texts: exit code, output, errors."""

    def call(*args):
        done = here(*args)
        return done.returncode, done.stdout, done.stderr

    e = data.Phrases(styles=("plain", "formal"), each=80).load()
    rows = zip(decode(e.x), e.y.tolist(), e.domain.tolist(), strict=True)
    lines = [f'"{text}",{label % 2},shop {client}' for text, label, client in rows]
    (tmp_path / "reviews.csv").write_text("\n".join(["body,stars,shop", *lines]))
    return call


def test_texts_run_at_once_and_what_was_chosen_is_said(here, tmp_path):
    quick = ["rounds=1", "method=fedavg", "method.work.epochs=1", "adapters=none,tent", "data.length=32"]
    code, out, err = here("run", *NAMED, *quick)
    assert code == 0, err
    assert "data: 160 texts of 32 bytes, 2 clients; model=text; streams=original,corrupted,out-of-client,mixture" in err
    assert "(shifts: typos, casing, truncation, dropped_words, swapped_words)" in err
    assert "texts fill all 32 places: what is longer is cut (data.length)" in err
    assert "original" in out and "mixture" in out and "not run" not in out
    assert (tmp_path / "runs" / "001-fedavg" / "report.html").stat().st_size > 10_000


def test_a_preview_shows_the_texts_and_what_becomes_of_them(here, tmp_path):
    streams = ["streams=original,corrupted", "streams.corrupted.kinds=casing"]
    assert here("data", "preview", *NAMED, *streams)[0] == 0
    page = html.unescape((tmp_path / "preview.html").read_text())
    training, original, corrupted = (page.partition(f">{name}</h2>")[2] for name in HEADS)
    assert "Texts, with their classes" in page and "texts of 128" in page
    first = '<div class="line"><span>'
    shown = [part.partition("</div>")[0].partition("</span> ")[2] for part in original.split(first)[1:13]]
    turned = [part.partition("</div>")[0].partition("</span> ")[2] for part in corrupted.split(first)[1:13]]
    assert [t.swapcase() for t in shown] == turned and all(shown) and training


HEADS = ("Training examples", "Stream original", "Stream corrupted")


def test_a_wrong_column_is_one_sentence(here):
    code, _, err = here("run", *NAMED[:2], "data.text=words", "data.label=stars")
    assert code == 2 and "text='words' is no column of reviews.csv, which has body, stars, shop; set data.text=" in err


def test_checks_and_lists_know_texts(here):
    assert here("data", "check", "text", *(s.removeprefix("data.") for s in NAMED[1:]))[1].startswith(
        "ok: examples 160"
    )
    listed = here("data", "list")[1]
    assert "phrases" in listed and "your own: CSV file of texts and labels" in listed
