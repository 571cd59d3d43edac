"""Sets with domains in image folders: PACS, Office-Caltech-10, Office-Home and DomainNet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .domain_folders import DomainFolders


def _counts(**each: tuple[int, ...]) -> dict[str, Any]:
    """Published figures, from how many images of each class every domain has."""
    all_of = {domain: sum(images) for domain, images in each.items()}
    return {"classes": len(next(iter(each.values()))), "domains": {"all": all_of}, "per_domain_class": each}


@dataclass(frozen=True)
class PACS(DomainFolders):
    """Seven classes as photographs, art paintings, cartoons and sketches (Li et al., 2017).

    The official lists are used where they are there: `part="train"` is *_train_kfold.txt, and `part="test"` is
    *_crossval_kfold.txt, the rest of every domain. *_test_kfold.txt lists whole domains, training files included, for
    leaving a domain out; as a test set beside the training list it would leak.
    """

    domains: tuple[str, ...] = ("art_painting", "cartoon", "photo", "sketch")
    """The domains that are read, in the order that numbers them."""

    every: ClassVar[tuple[str, ...]] = domains
    places: ClassVar[tuple[str, ...]] = (
        *("PACS", "pacs", "PACS/pacs_data", "PACS/images", "PACS/kfold", "pacs_data", "kfold", ""),
    )
    aliases: ClassVar[dict[str, str]] = {"art": "artpainting"}
    class_names: ClassVar[tuple[str, ...]] = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    lists: ClassVar[dict[str, str]] = {"train": "{}_train_kfold.txt", "test": "{}_crossval_kfold.txt"}
    list_folders: ClassVar[tuple[str, ...]] = (
        *("", "splits", "pacs_label", "Train val splits and h5py files pre-read", ".."),
    )
    first_label: ClassVar[int] = 1
    origin: ClassVar[str] = "https://dali-dl.github.io/project_iccv2017.html"
    needs: ClassVar[str] = "PACS/{art_painting,cartoon,photo,sketch}/CLASS/*.jpg or *.png"
    published: ClassVar[dict[str, Any]] = _counts(
        art_painting=(379, 255, 285, 184, 201, 295, 449),
        cartoon=(389, 457, 346, 135, 324, 288, 405),
        photo=(189, 202, 182, 186, 199, 280, 432),
        sketch=(772, 740, 753, 608, 816, 80, 160),
    )


@dataclass(frozen=True)
class OfficeCaltech10(DomainFolders):
    """The ten classes that Office-31 and Caltech-256 share, in four domains; or Office-10 (Gong et al., 2012)."""

    domains: tuple[str, ...] = ("amazon", "caltech10", "dslr", "webcam")
    """The domains that are read, in the order that numbers them."""

    every: ClassVar[tuple[str, ...]] = domains
    places: ClassVar[tuple[str, ...]] = (
        *("office_caltech_10", "OfficeCaltech10", "office-caltech-10", "Office-Caltech-10", "office_caltech"),
        *("office10", "Office-10", ""),
    )
    aliases: ClassVar[dict[str, str]] = {"caltech": "caltech10"}
    origin: ClassVar[str] = "https://people.eecs.berkeley.edu/~jhoffman/domainadapt (images of Office-Caltech)"
    needs: ClassVar[str] = "office_caltech_10/{amazon,caltech10,dslr,webcam}/CLASS/*.jpg"
    published: ClassVar[dict[str, Any]] = _counts(
        amazon=(92, 82, 94, 99, 100, 100, 99, 100, 94, 98),
        caltech10=(151, 110, 100, 138, 85, 128, 133, 94, 87, 97),
        dslr=(12, 21, 12, 13, 10, 24, 22, 12, 8, 23),
        webcam=(29, 21, 31, 27, 27, 30, 43, 30, 27, 30),
    )


@dataclass(frozen=True)
class OfficeHome(DomainFolders):
    """65 classes of things at home and in offices, in four domains (Venkateswara et al., 2017)."""

    domains: tuple[str, ...] = ("art", "clipart", "product", "real_world")
    """The domains that are read, in the order that numbers them."""

    every: ClassVar[tuple[str, ...]] = domains
    places: ClassVar[tuple[str, ...]] = (
        *("OfficeHomeDataset_10072016", "OfficeHome", "office_home", "office-home", "officehome", ""),
    )
    aliases: ClassVar[dict[str, str]] = {"real": "realworld"}
    origin: ClassVar[str] = "https://www.hemanthdv.org/officeHomeDataset.html"
    needs: ClassVar[str] = "OfficeHomeDataset_10072016/{Art,Clipart,Product,Real World}/CLASS/*.jpg"
    published: ClassVar[dict[str, Any]] = {
        "classes": 65,
        "domains": {"all": {"art": 2427, "clipart": 4365, "product": 4439, "real_world": 4357}},
    }


def _domainnet(counts: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(("clipart", "infograph", "painting", "quickdraw", "real", "sketch"), counts, strict=True))


@dataclass(frozen=True)
class DomainNet(DomainFolders):
    """345 classes in six domains (Peng et al., 2019). The official lists are those of the cleaned version."""

    domains: tuple[str, ...] = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    """The domains that are read, in the order that numbers them."""

    every: ClassVar[tuple[str, ...]] = domains
    places: ClassVar[tuple[str, ...]] = ("DomainNet", "domainnet", "domain_net", "")
    lists: ClassVar[dict[str, str]] = {"train": "{}_train.txt", "test": "{}_test.txt"}
    origin: ClassVar[str] = "http://ai.bu.edu/M3SDA (cleaned version: six archives and their _train.txt and _test.txt)"
    needs: ClassVar[str] = "DomainNet/{clipart,infograph,painting,quickdraw,real,sketch}/CLASS/*.jpg"
    published: ClassVar[dict[str, Any]] = {
        "classes": 345,
        "domains": {
            "all": _domainnet((48129, 51605, 72266, 172500, 172947, 69128)),
            "train": _domainnet((33525, 36023, 50416, 120750, 120906, 48212)),
            "test": _domainnet((14604, 15582, 21850, 51750, 52041, 20916)),
        },
    }
