"""Gluon without a GPU: the plain functions of a kernel run with torch's numbers, one program after the other.

Shared memory begins as NaN. A product is there only once it was waited for, memory that it or the copy engine reads
must not be written before that was waited for, and what the engine brings must be as many bytes as were announced.
Threads are one, so barriers between them are not tested.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace

import torch


class Pointer:
    """Where numbers lie."""

    def __init__(self, tensor, at=0):
        self.flat, self.at = tensor.view(-1), at

    def __add__(self, more):
        return Pointer(self.flat, self.at + more)


class Memory:
    """A view of shared memory, perhaps turned; it may reach behind what it was made of, as a kernel's may."""

    def __init__(self, machine, flat, begin, shape, turned=False):
        self.machine, self.flat, self.begin, self.shape, self.turned = machine, flat, begin, list(shape), turned

    def index(self, i):
        size = torch.Size(self.shape[1:]).numel()
        return Memory(self.machine, self.flat, self.begin + int(i) * size, self.shape[1:])

    def seen(self, dtype, shape, layout):
        assert dtype == self.flat.dtype
        if not self.machine.overlaps:
            assert torch.Size(shape).numel() == torch.Size(self.shape).numel(), "a view of another size"
        return Memory(self.machine, self.flat, self.begin, shape)

    def permute(self, order):
        assert order == (1, 0)
        return Memory(self.machine, self.flat, self.begin, self.shape, not self.turned)

    @property
    def places(self):
        end = self.begin + torch.Size(self.shape).numel()
        assert end <= len(self.flat), "out of the memory of this program"
        return range(self.begin, end)

    def value(self):
        numbers = self.flat[self.places.start : self.places.stop].view(self.shape)
        return numbers.mT if self.turned else numbers

    def meets(self, other):
        mine, its = self.places, other.places
        return self.flat is other.flat and max(mine[0], its[0]) <= min(mine[-1], its[-1])

    def store(self, value):
        readers = [*self.machine.read, *(m for p in self.machine.products if not p.done for m in p.read)]
        assert not any(map(self.meets, readers)), "the copy engine or a product still reads this"
        self.value().copy_(value)


class Box:
    """A descriptor: what the copy engine takes of a tensor at a time."""

    def __init__(self, tensor, *shape):
        self.tensor, self.layout = tensor, None
        self.block_type = SimpleNamespace(shape=list(shape), nbytes=torch.Size(shape).numel() * tensor.element_size())


@dataclass
class Product:
    """A product that is under way."""

    numbers: torch.Tensor
    read: list
    done: bool = False


@dataclass
class Machine:
    """What a program has under way."""

    program: int
    overlaps: bool = True
    """Whether a view of shared memory may be larger than what it is made of, as before Triton 3.8."""
    products: list = field(default_factory=list)
    read: list = field(default_factory=list)
    announced: int = 0
    brought: int = 0

    def names(self):
        """What a kernel's module takes from Gluon."""
        return {
            "gl": self.language(),
            "mbarrier": SimpleNamespace(
                init=lambda *_, **__: None, expect=self.expect, wait=self.arrived, MBarrierLayout=lambda: None
            ),
            "tma": SimpleNamespace(store_wait=self.stored),
            "fence_async_shared": lambda: None,
            "warpgroup_mma": self.multiply,
            "warpgroup_mma_init": lambda x: x,
            "warpgroup_mma_wait": self.wait,
            "_barrier": lambda: None,
            "_view": Memory.seen,
            "_load": self.load,
            "_store": self.store,
        }

    def language(self):
        def nothing(*_, **__):
            return None

        def where(which, a, b):
            if not isinstance(which, torch.Tensor):
                return a if which else b
            return torch.where(which, *(x if isinstance(x, torch.Tensor) else torch.tensor(x) for x in (a, b)))

        layouts = ("SliceLayout", "BlockedLayout", "NVMMADistributedLayout", "NVMMASharedLayout", "DotOperandLayout")
        return SimpleNamespace(
            **dict.fromkeys(layouts, nothing), where=where, static_range=range,
            bfloat16=torch.bfloat16, float32=torch.float32, int64=torch.int64,
            program_id=lambda _: torch.tensor(self.program), arange=lambda a, b, layout: torch.arange(a, b),
            zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype),
            full=lambda shape, value, dtype, layout: torch.full(shape, value, dtype=dtype),
            convert_layout=lambda x, layout: x, exp2=torch.exp2, log2=torch.log2, maximum=torch.maximum,
            max=lambda x, axis: x.amax(axis), sum=lambda x, axis: x.sum(axis),
            load=self.read_numbers, store=self.write_numbers, allocate_shared_memory=self.allocate,
        )  # fmt: skip

    def allocate(self, dtype, shape, layout):
        size = torch.Size(shape).numel()
        flat = torch.full((size,), float("nan")).to(dtype) if dtype.is_floating_point else torch.zeros(size)
        return Memory(self, flat, 0, shape)

    @staticmethod
    def read_numbers(at, mask, other):
        places, mask = torch.broadcast_tensors(at.at, mask)
        found = at.flat[torch.where(mask, places, 0)]
        return torch.where(mask, found, torch.tensor(other, dtype=found.dtype))

    @staticmethod
    def write_numbers(at, value, mask):
        at.flat[at.at[mask]] = value[mask].to(at.flat.dtype)

    def expect(self, bar, count):
        self.announced += count

    def arrived(self, bar, phase):
        assert self.announced == self.brought

    def load(self, box, place, bar, to):
        assert to.shape == box.block_type.shape
        part = box.tensor[tuple(slice(int(p), int(p) + n) for p, n in zip(place, to.shape, strict=True))]
        to.value().zero_()[tuple(slice(n) for n in part.shape)] = part
        self.brought += box.block_type.nbytes

    def store(self, box, place, of):
        assert of.shape == box.block_type.shape
        part = box.tensor[tuple(slice(int(p), int(p) + n) for p, n in zip(place, of.shape, strict=True))]
        part.copy_(of.value()[tuple(slice(n) for n in part.shape)])
        self.read.append(of)

    def stored(self, left):
        assert left == 0
        self.read.clear()

    def multiply(self, a, b, acc, use_acc=True, is_async=False):
        read = [x for x in (a, b) if isinstance(x, Memory)]
        a, b = (x.value() if isinstance(x, Memory) else x for x in (a, b))
        numbers = acc.numbers if isinstance(acc, Product) else acc
        assert is_async and numbers.shape == (a.shape[0], b.shape[1]) and a.dtype == b.dtype == torch.bfloat16
        product = Product(a.float() @ b.float() + (numbers if use_acc else 0.0), read)
        self.products.append(product)
        return product

    def wait(self, left, deps):
        for product in self.products[: len(self.products) - left]:
            product.done = True
        assert all(p.done for p in deps if isinstance(p, Product)), "a product is not there yet"
        given = tuple(p.numbers if isinstance(p, Product) else p for p in deps)
        return given[0] if len(given) == 1 else given
