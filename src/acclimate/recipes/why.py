"""What is known of why ours differ from published accuracies: the causes that `causes.py` looks through, in order.

`evidence` names the results that support a cause, below `results/`. A cause without any is not known, and is not here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """Why some numbers of a table differ."""

    table: str
    why: str
    evidence: str = ""
    """Files below `results/`, or what it was computed from; empty: unknown."""
    file: str = ""
    """Of which of our files the numbers are; empty: of any."""
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Fields of the published numbers, and the values that are meant; empty: all of the table."""
    as_released: bool = False
    """Whether a `released-*` recipe does what it says; a number that this has measured needs the guess no more."""


OFFICE = {"Amazon": 192, "Caltech": 225, "DSLR": 32, "Webcam": 59}
ONE_DRAW = {"fedicon/table2": OFFICE, "fedicon/table5": OFFICE}
"""Test images by domain, where all runs of a paper share them: the cells of FedICON's Office-10 fit the sizes of the
lists of files that the code of its first author reads."""
BATCH_WISE = (
    "our mixture has no natural part (CIFAR-10.1 is not here): with one weight per batch it is answered as by the two "
    "heads without adaptation, ours 67.0 and 67.0, the paper's 70.1 and 70.7; the mean of that row's other three "
    "streams in the paper is 67.6"
)
RAISED = (
    "the paper's row may raise the entropy that Eq. 3 lowers: of six readings on the same two heads, in a small world, "
    "the highest entropy of a sample alone lies where the paper's row does, 0.32 of the way from the global head to "
    "the personal one on original samples and 0.48 out of client; the paper's is at 0.29 and 0.47 between its FedAvg "
    "and its two heads"
)
ROUND = (
    "it hangs on the round that validation picks: ours is at the paper's 77.5 after 70 rounds, with 76.4 on newcomers, "
    "and stays within 2 points of its best, which is round 90, until round 210, while newcomers rise to 84.7"
)
BACKBONES = (
    "our backbones have seen ImageNet, the paper's drawings, aircraft and birds, and its code has another classifier: "
    "on one that has seen QuickDraw's drawings, with everything as in that code, FedAvg, Solo and FedPCL have 33.3, "
    "37.0 and 42.4 under label shift and 25.3, 35.5 and 47.6 under both; the paper has 28.8, 37.8, 40.8 and 25.7, "
    "35.5, 37.6"
)
DRAWN = (
    "our three backbones have seen ImageNet, the paper's drawings, aircraft and birds: on one backbone that has seen "
    "QuickDraw's drawings every row comes within 3 points of the paper on SVHN, 14.1 to 16.8 instead of 25.0 to 29.2 "
    "on one that has seen ImageNet; three that we trained keep too little of a digit to say more"
)
PIXELS = (
    "our images have 64 pixels, the paper's code shows 224, and photographs and paintings lose more with their pixels "
    "than drawings: of a domain left out, a linear classifier on the frozen ResNet-18 knows 13.3 points more of Photo "
    "and 14.5 more of Art with 64 pixels than with 32, and 0.1 more of Cartoon; with the paper's own Photo and Art our "
    "means would be within 3 points"
)
WIDTH = (
    "the network that stands in for the paper's has half of its width: on one of full width, all else alike, FedAvg "
    "has 30.1 and Solo 26.7 on MNIST-M, and Solo 33.6 under label shift; the paper has 29.3, 28.5 and 36.4"
)
FIFTH = (
    "SynthDigits is not here, from which the paper's clients learn too: with a drawn domain in its place FedAvg has "
    "75.4 ± 4.0 on MNIST and 21.9 ± 1.9 on SVHN; FedProx, FedAvg-FT and, on MNIST, FedTHE are within a point of "
    "FedAvg"
)
CLASSIFIER = (
    "the released code's classifier gives the softmax the positive part of its logits, scaled to length one; the paper "
    "and our recipe have a plain layer. With the released one FedAvg has 31.4 ± 0.7 on one backbone and 35.7 ± 2.5 on "
    "three, pFedMe 22.6 ± 0.7 on one; the paper has 31.0, 33.0 and 25.1"
)
MANY = (
    "the published code has another classifier than the paper: with everything as in that code, on one backbone that "
    "has seen QuickDraw, FedAvg has 23.2 instead of 45.9 with 40 clients and 22.7 instead of 45.6 with 80, and is "
    "below FedPCL, which has 35.9 and 34.2; the paper's FedAvg has 32.2 and 33.4 with three backbones"
)
VIEWED = (
    "the paper's rows may train on random views and with momentum 0.5: those of the code that the first author "
    "released with FedPCL have this momentum and train on the first of two views that its loader gives. So, over three "
    "seeds, these numbers come within 3 points of the paper's. But then EATA with 69.0 and Tent with 68.9 would be "
    "above FedICON with 68.4 on enlarged images"
)
SMALL = (
    "the paper's test images may keep the pixels of their sets, 16 of USPS and 28 of MNIST-M, in the middle of 32 when "
    "they are corrupted: so, with views and momentum and over three seeds, these numbers come within 3 points of the "
    "paper's. On MNIST fewer rows fit so than on enlarged images"
)
WRAPPED = (
    "the paper's clients may train on all 74 images of a class that a file of the first author's loader has, and "
    "FedTHE's corruptions, put behind that loader, may have got images in -1..1, whose bytes wrap around: so, over "
    "three seeds, 12 of 15 numbers of five rows come within 3 points of the paper's. USPS stays 7 to 20 points too high"
)
ALONE = (
    "the paper's test images may keep the 16 pixels of USPS in the middle of 32 when they are corrupted: so, over "
    "three seeds and in four ways of training, Local has 16.4 to 21.8; the paper has 16.9"
)
STAND_IN = (
    "our number is of an EfficientNet-Lite0, which stands in for the paper's ResNet-18 and learns little in 20 rounds "
    "at the released rate: trained from that ResNet-18, with ten times the rate, it is within 3 points of the paper"
)
_BOTH_DIGITS = (("dataset", ("Digit-5",)), ("shift", ("feature & label shift non-IID",)))
READ = (
    (WRAPPED, "MNIST", ("Local", "FedAvg", "FedICON")),
    (WRAPPED, "SVHN", ("FedAvg", "FedBN", "Tent", "FedICON")),
    (WRAPPED, "MNIST-M", ("Local", "FedAvg", "FedBN", "Tent", "FedICON")),
    (VIEWED, "MNIST", ("FedAvg", "FedAvg-FT", "FedProx", "FedTHE", "Tent", "FedICON")),
    (VIEWED, "SVHN", ("Local", "FedAvg", "FedAvg-FT", "FedProx", "FedBN", "FedTHE", "EATA")),
    (SMALL, "USPS", ("FedProx", "FedICON")),
    (SMALL, "MNIST-M", ("FedProx", "FedBN")),
    (ALONE, "USPS", ("Local",)),
)
"""Which numbers of FedICON's Table 1 a reading explains, by domain."""
CAUSES: tuple[Cause, ...] = (
    *(
        Cause(
            f"fedthe/{table}",
            BATCH_WISE,
            f"fedthe/{table}-paper.json",
            where=(("design_choice", ("10",)), ("stream", ("mixture",))),
        )
        for table in ("table3", "table13")
    ),
    *(
        Cause(
            f"fedthe/{table}",
            RAISED,
            f"fedthe/{table}-paper.json, causes/fedthe-readings.json",
            where=(("design_choice", ("7",)),),
        )
        for table in ("table3", "table13")
    ),
    Cause(
        "fedtta/table1",
        ROUND,
        "fedtta/table1-paper.json, trainings/ec275db53600f262.json",
        "fedtta/table1-paper.json",
        (("method", ("TENT",)), ("dataset", ("CIFAR-10",)), ("split", ("test",))),
    ),
    *(
        Cause(
            "fedicon/table1",
            why,
            f"fedicon/table1-paper.json, causes/fedicon-{'wrapped' if why is WRAPPED else 'readings'}.json",
            where=(("method", methods), ("domain", (domain,))),
            as_released=why is WRAPPED,
        )
        for why, domain, methods in READ
    ),
    *(
        Cause(
            "fedicon/table7",
            FIFTH,
            "fedicon/table7-paper.json, causes/fifth-domain.json",
            where=(("method", methods), ("domain", domains)),
        )
        for methods, domains in ((("FedAvg", "FedProx", "FedAvg-FT"), ("MNIST", "SVHN")), (("FedTHE",), ("MNIST",)))
    ),
    Cause(
        "fedspl/table1",
        PIXELS,
        "fedspl/tenfold-paper-resnet18.json, causes/pacs-pixels.json",
        "fedspl/tenfold-paper-resnet18.json",
        (("method", ("FedAvg", "Tent", "FedSPL")), ("domain", ("Photo", "Art", "Avg"))),
    ),
    *(
        Cause(
            f"fedspl/{table}",
            STAND_IN,
            f"fedspl/{table}-paper.json, fedspl/tenfold-paper-resnet18.json",
            f"fedspl/{table}-paper.json",
            (("method", (method,)), ("domain", domains)),
        )
        for table, method, domains in (
            ("table2", "FedSPL variant", ("Sketch",)),
            ("table4", "Fedavg", ("Sketch",)),
            ("table4", "FMR", ("Sketch",)),
            ("table4", "MBSL", ("Cartoon", "Sketch")),
        )
    ),
    Cause(
        "fedpcl/table2",
        DRAWN,
        "fedpcl/table2-paper.json, fedpcl/table2-paper-resnet18.json",
        "fedpcl/table2-paper.json",
        (("backbone", ("multi",)), ("domain", ("SVHN",))),
    ),
    *(
        Cause(
            f"fedpcl/{table}",
            WIDTH,
            f"fedpcl/{table}-paper-resnet18.json, causes/quickdraw-full.json",
            f"fedpcl/{table}-paper-resnet18.json",
            where,
        )
        for table, where in (
            ("table2", (("method", ("FedAvg", "Solo")), ("domain", ("MNIST-M",)))),
            ("table11", (("method", ("Solo",)), ("shift", ("label shift non-IID",)))),
        )
    ),
    *(
        Cause(table, BACKBONES, f"{table}-paper.json, causes/quickdraw-full.json", f"{table}-paper.json", where)
        for table, where in (
            ("fedpcl/table3", (("dataset", ("Office-10",)),)),
            ("fedpcl/table4", (("dataset", ("Office-10",)),)),
            ("fedpcl/table11", (("dataset", ("Office-10",)),)),
            ("fedpcl/table15", ()),
        )
    ),
    *(
        Cause(table, CLASSIFIER, f"{table}-paper.json, causes/tested-classes.json", f"{table}-paper.json", where)
        for table, where in (
            ("fedpcl/table11", (("method", ("FedAvg",)), *_BOTH_DIGITS)),
            ("fedpcl/table11", (("method", ("pFedMe",)), ("backbone", ("single",)), *_BOTH_DIGITS)),
            ("fedpcl/table5", (("method", ("Cross Entropy",)),)),
        )
    ),
    *(
        Cause(
            f"fedpcl/{table}",
            MANY,
            f"fedpcl/{table}-paper.json, causes/quickdraw-full.json",
            f"fedpcl/{table}-paper.json",
            (("method", ("FedAvg",)),),
        )
        for table in ("table12", "table13")
    ),
)
"""In the order of the papers."""
