"""Folders of images and arrays as people have them: photos of telephones, left-overs of systems, other layouts."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from acclimate.data import Arrays, ImageFolder, images, of

pytestmark = pytest.mark.usefixtures("own_machine")
Y = np.arange(40) % 2


def photos(sites=("north", "south"), classes=("cat", "dog"), count=3, path="photos"):
    image = pytest.importorskip("PIL.Image")
    g = np.random.default_rng(0)
    for site in sites:
        for name in classes:
            folder = Path(path, site, name)
            folder.mkdir(parents=True, exist_ok=True)
            for i in range(count):
                image.fromarray(g.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return Path(path)


def test_folders_that_systems_leave_behind_are_no_domains_and_no_classes():
    base = photos()
    for left in ("__MACOSX/north/cat", "north/@eaDir/0.png", ".git/x"):
        (base / left).mkdir(parents=True)
    found = ImageFolder(path="photos").load()
    assert (found.domains, found.classes, len(found.y)) == (("north", "south"), ("cat", "dog"), 12)


def test_one_class_is_refused_whatever_holds_it():
    photos(classes=("cat",))
    said = "ImageFolder: all 6 examples are of one class, 'cat'; .* if the outer folders are the classes, set data.leve"
    with pytest.raises(ValueError, match=said):
        ImageFolder(path="photos").load()
    photos(sites=("",), classes=("cat",), path="one")
    with pytest.raises(ValueError, match="all 3 examples are of one class, 'cat'; a model learns to tell at least two"):
        ImageFolder(path="one", levels="class").load()
    np.savez("one.npz", x=np.zeros((40, 8, 8), np.uint8), y=np.full(40, "cat"))
    with pytest.raises(
        ValueError, match=r"Arrays: all 40 examples are of one class, 'cat'; .* tell at least two apart$"
    ):
        Arrays(file="one.npz").load()


def test_classes_or_parts_in_place_of_domains_are_refused_with_the_level():
    photos(sites=("",), path="classes")
    with pytest.raises(ValueError, match=r"cat: holds images in place of folders of classes; .*set data.levels=class$"):
        ImageFolder(path="classes").load()
    assert len(ImageFolder(path="classes", levels="class").load().y) == 6
    photos(sites=("train", "test"), path="parts")
    with pytest.raises(ValueError, match="test and train are parts of a set, not domains; set data.levels=part/class"):
        ImageFolder(path="parts").load()
    assert ImageFolder(path="parts", levels="part/class").official_test().tolist() == [False] * 6 + [True] * 6
    photos(sites=("set/north", "set/south"), path="deep")
    with pytest.raises(ValueError, match="class folder without images.*it holds folders: name one that lies deeper"):
        ImageFolder(path="deep").load()


def test_a_photo_is_turned_as_its_camera_says():
    image = pytest.importorskip("PIL.Image")
    base = photos()
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:, 8:] = 255  # light on the right
    exif = image.Exif()
    exif[0x0112] = 6  # held so that the top of the scene is on the left: turn it to the right
    image.fromarray(pixels).save(base / "north" / "cat" / "0.png", exif=exif)
    found = ImageFolder(path="photos").load().x[0]
    assert found[:, :8].max() == 0 and found[:, 8:].min() == 255  # light below
    lying = images.decode(base / "north" / "cat" / "0.png", None, 3)
    assert lying[:, :, :8].max() == 0 and lying[:, :, 8:].min() == 255  # as published sets are read


def test_a_link_that_leads_nowhere_is_named():
    base = photos()
    os.symlink("nowhere.png", base / "north" / "cat" / "9.png")
    with pytest.raises(
        FileNotFoundError, match=r"9.png is not there; is it a link that leads nowhere\? Mend or remove"
    ):
        ImageFolder(path="photos").load()


def test_images_in_formats_that_are_not_read_are_told(caplog):
    base = photos()
    for name in ("a.heic", "b.HEIC", "c.dcm", "notes.txt", ".hidden.heic"):
        (base / "north" / "cat" / name).write_bytes(b"x")
    assert len(ImageFolder(path="photos").load().y) == 12
    assert "photos: 1 .dcm, 2 .heic are images that are not read, and left out" in caplog.text
    assert "txt" not in caplog.text


# --- arrays --------------------------------------------------------------------------------------------------------


def test_floats_with_channels_last_are_images_with_channels_first():
    x = np.random.default_rng(0).random((40, 16, 12, 3))
    wanted = torch.from_numpy(x.transpose(0, 3, 1, 2)).float()
    assert torch.equal(of(x, Y, clients=2).load().x, wanted)
    np.savez("t.npz", x=x, y=Y)
    assert torch.equal(Arrays(file="t.npz", clients=2).load().x, wanted)
    assert Arrays(file="t.npz", clients=2, layout="chw").load().x.shape == (40, 16, 12, 3)
    for shape in ((40, 3, 16, 3), (40, 1, 8, 3), (40, 8, 4, 4)):
        assert of(np.ones(shape), Y, clients=2).load().x.shape == shape


def test_masked_numbers_are_missing():
    x = np.ma.masked_array(np.arange(80.0).reshape(40, 2), mask=np.arange(80).reshape(40, 2) % 10 == 0)
    found = of(x, Y, clients=2).load()
    assert [f[:2] for f in found.features] == [("0", "number"), ("0", "missing"), ("1", "number")]
    assert found.x[:, 1].tolist() == [float(i % 5 == 0) for i in range(40)]
    whole = of(np.ma.masked_array(np.arange(80).reshape(40, 2), mask=x.mask), Y, clients=2).load()
    assert torch.equal(whole.x, found.x)


def test_short_floats_of_torch_are_read():
    x = torch.arange(80.0).view(40, 2)
    assert torch.equal(of(x.bfloat16(), Y, clients=2).load().x, x)


class Sparse:
    def toarray(self):
        raise AssertionError("the user decides about memory")


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (np.ones((40, 2)), np.eye(2)[Y], r"y needs one value per row: give y.argmax\(1\), as every row has a single 1"),
        (np.ones((40, 2)), Y[:, None], r"y has shape \(40, 1\) .*: give y.reshape\(-1\)"),
        (np.ones((40, 2)), np.ones((40, 2)), "one class per row is supported, several labels per row are not"),
        (Sparse(), Y, r"x is a sparse Sparse; give x.toarray\(\)"),
    ],
)
def test_arrays_in_other_forms_say_what_to_do(x, y, said):
    with pytest.raises(ValueError, match=said):
        of(x, y, clients=2)


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (np.ones((40, 2), np.int64), Y, r"x is of type int64, .*save it again as x.astype\(numpy.uint8\) or x.astype"),
        (np.ones((40, 2)), np.eye(2)[Y], r"y has shape \(40, 2\), .*\(y.argmax\(1\), if every row has a single 1\)"),
        (np.ones((40, 2)), np.array(["a", "b"], object)[Y], r"type object; save names as text, y.astype\(str\)"),
    ],
)
def test_archives_in_other_forms_say_what_to_do(x, y, said):
    np.savez("t.npz", x=x, y=y)
    with pytest.raises(ValueError, match=said):
        Arrays(file="t.npz", clients=2).load()


def test_one_array_is_no_archive():
    np.save("t.npy", np.ones(3))
    with pytest.raises(ValueError, match=r"one array, not an archive; save x and y together with numpy.savez"):
        Arrays(file="t.npy", clients=2).load()
