"""Compiles the Triton kernels for NVIDIA cards as launches on them would, without a GPU.

    python tests/scripts/compile_kernels.py [--all] [--cards 80 90]

Triton's interpreter runs much that its compiler, or ptxas, refuses, and it knows no limit of shared memory. Here the
library launches its kernels on tensors of the CPU, whose numbers nobody reads. From the arguments Triton finds types,
constants and alignment, and compiles; nothing runs. Each variant is a line: the card, the kernel, the case, the
constants, registers of a thread, bytes of what does not fit into them, and bytes of shared memory.

The exit code is 1, and the last lines say why, if a variant cannot be compiled, if it needs more shared memory than the
card has, if another address of a number makes another variant of it, or if a kernel of the package is in no case. What
the library itself does not launch on a card is left out.

It is a program of its own, because the other tests run kernels in the interpreter: that is chosen once, when triton is
imported.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import pkgutil
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from attendrop import kernels
from attendrop.kernels.attention_mask import triton as attention_mask
from attendrop.kernels.attribution_mask import triton as attribution_mask
from attendrop.kernels.attribution_mask.reference import DropRule
from attendrop.kernels.bitmask_attention import api
from attendrop.kernels.bitmask_attention import triton as bitmask_attention
from attendrop.kernels.bitmask_attention.reference import Dropout
from attendrop.kernels.draws import triton as draws
from attendrop.kernels.foreach import triton as foreach
from attendrop.kernels.mask_bits import triton as mask_bits
from attendrop.kernels.mask_bits.reference import Bits, Blocks, PackedKeep, pack
from attendrop.kernels.mixed_rows import triton as mixed_rows
from attendrop.kernels.random_scaling import triton as weights

# Compute capability -> bytes of shared memory that a program may have.
SHARED = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WIDTHS = (32, 64, 80, 96, 128)
LONGEST = 2000  # characters of an error that are shown

BATCH, HEADS = 2, 12


class Case(NamedTuple):
    """A call of the library that launches kernels."""

    name: str
    call: Callable[[], Any]
    attention: tuple[torch.dtype, int] | None = None  # precision and width of the heads of attention by bits

    def is_launched_on(self, capability: int) -> bool:
        """Whether the library would launch it on a card of this compute capability."""
        if self.attention is None:
            return True
        major, minor = divmod(capability, 10)
        reserved = 1024  # of the shared memory of a multiprocessor, which programs cannot have
        card = SimpleNamespace(major=major, minor=minor, shared_memory_per_multiprocessor=SHARED[capability] + reserved)
        return api._unserved_by(card, *self.attention) is None


# ---- launches that only compile --------------------------------------------------------------------------------


class Card:
    """Takes the place of Triton's driver: what its launches ask for is a card of this compute capability."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # as a number, because Triton keeps what it has compiled for each number

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiler:
    """Compiles what is launched, and remembers what went wrong."""

    def __init__(self) -> None:
        self.case = Case("", lambda: None)
        self.card = 0
        self.compiled: set[tuple[int, str]] = set()  # by card and hash
        self.kernels: set[str] = set()
        self.problems: list[str] = []
        triton.knobs.nvidia.dump_ptxas_log = True
        launched = self.launched
        JITFunction.__getitem__ = lambda kernel, grid: lambda *args, **options: launched(kernel, args, options)

    def run(self, card: int, cases: Iterable[Case]) -> None:
        self.card = card
        driver.set_active(Card(card))
        for self.case in cases:
            if self.case.is_launched_on(card):
                self.case.call()

    def launched(self, kernel: JITFunction, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if "ASM" in options:  # the tensors are on no GPU, and so the library would choose the variant without assembly
            options["ASM"] = True
        self.kernels.add(kernel.__name__)
        place = f"sm_{self.card} {kernel.__name__} ({self.case.name})"
        # written before it is compiled: a compiler that aborts takes this process with it
        print(place, *(f"{name}={value}" for name, value in options.items()), end=" | ", flush=True)
        start, log = time.monotonic(), io.StringIO()
        try:
            with redirect_stdout(log):
                compiled = kernel.run(*args, grid=None, warmup=True, **options)
        except Exception as error:
            print("FAILED", flush=True)
            self.problems.append(f"{place} cannot be compiled: {' '.join(str(error).split())[:LONGEST]}")
            return
        if (self.card, compiled.hash) in self.compiled:
            print("compiled before", flush=True)
            return
        self.compiled.add((self.card, compiled.hash))
        registers, spilled = (
            match[1] if (match := re.search(pattern, log.getvalue())) else "?"
            for pattern in (r"Used (\d+) registers", r"(\d+) bytes spill stores")
        )
        shared, limit = compiled.metadata.shared, SHARED[self.card]
        print(
            f"{registers} registers, {spilled} spilled, {shared} shared | {time.monotonic() - start:.1f} s", flush=True
        )
        if compiled.hash != kernel.run(*map(at_another_address, args), grid=None, warmup=True, **options).hash:
            self.problems.append(f"{place} is compiled again where a number has another address.")
        if shared > limit:
            self.problems.append(f"{place} needs {shared} bytes of shared memory, and the card has {limit}.")


def at_another_address(argument: Any) -> Any:
    """The argument; for a number in memory, another one of its type, whose address is no multiple of 16."""
    is_number = isinstance(argument, Tensor) and argument.ndim == 0
    return torch.zeros(2, dtype=argument.dtype)[1] if is_number else argument


def kernels_of_the_package() -> set[str]:
    """The names of all functions that can be launched: by convention they end with `_kernel`."""
    all_kernels = set()
    for module in pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}."):
        if module.name.rpartition(".")[2].startswith("triton"):
            names = vars(importlib.import_module(module.name))
            all_kernels |= {
                name for name, x in names.items() if isinstance(x, JITFunction) and name.endswith("_kernel")
            }
    return all_kernels


# ---- cases -----------------------------------------------------------------------------------------------------


def heads_of(dtype: torch.dtype, positions: int, width: int, heads: int = HEADS) -> Tensor:
    """[B, H, T, d], in memory as a model's projection leaves it."""
    return torch.empty(BATCH, positions, heads, width, dtype=dtype).transpose(1, 2)


def valid_of(kind: str, positions: int) -> Tensor:
    """The model's own mask: no padding, padding, or other keys for each query."""
    if kind == "rows":
        return torch.ones(positions, positions, dtype=torch.bool).tril().expand(BATCH, 1, -1, -1)
    return torch.ones(BATCH, 1, 1, positions, dtype=torch.bool)


def attention(
    dtype: str,
    width: int,
    positions: int,
    bits: str = "",
    empty: bool = False,
    ranges: bool = False,
    dropout: bool = False,
    groups: int = HEADS,
) -> Case:
    """Attention by bits, forward and backward. `bits`: none, or those of "keys" or of "rows"."""

    def call() -> None:
        query = heads_of(DTYPES[dtype], positions, width)
        key, value = (heads_of(DTYPES[dtype], positions, width, groups) for _ in range(2))
        of_kind = None
        if bits:
            valid = valid_of(bits, positions)
            of_kind = Bits(pack(valid), None, positions)
            if empty:
                of_kind = of_kind._replace(empty=torch.zeros(*valid.shape[:3], 1, dtype=torch.bool))
        blocks = Blocks.of(valid_of("rows", positions), positions) if ranges else None
        drop = Dropout.of(0.1, torch.zeros((), dtype=torch.int32)) if dropout else None
        scaling = width**-0.5
        output, lse, words = bitmask_attention.forward(query, key, value, of_kind, blocks, scaling, drop)
        gradient = torch.empty_like(output)
        bitmask_attention.backward(gradient, query, key, value, output, lse, words, of_kind, blocks, scaling, drop)

    kinds = [f"bits of {bits}" if bits else "", "empty" if empty else "", "ranges" if ranges else ""]
    kinds += ["dropout" if dropout else "", "shared keys" if groups < HEADS else ""]
    name = ", ".join(filter(None, [f"{dtype}, width {width}, {positions} positions", *kinds]))
    return Case(name, call, (DTYPES[dtype], width))


def rule_of(direction: str, in_memory: bool = False) -> DropRule:
    """`in_memory`: as in a captured step, where the numbers are on the device."""
    positions = torch.arange(BATCH)
    if not in_memory:
        return DropRule(0.3, 0.5, 123456789, positions, direction)
    numbers = torch.zeros((), dtype=torch.float64)
    return DropRule(numbers, numbers, torch.zeros((), dtype=torch.int32), positions, direction)


def selection(
    dtype: str,
    width: int,
    keys: int,
    valid: str = "all",
    direction: str = "high",
    ranges: bool = False,
    in_memory: bool = False,
    again: bool = False,
) -> Case:
    """The mask of AD-DROP as bits; with `again` its thresholds, and bits from these, as where bits are not stored.

    `valid`: "all" positions, the same "keys" in all rows, or others in each of the "rows".
    """

    def call() -> None:
        gradient = heads_of(DTYPES[dtype], keys, width).transpose(1, 2)
        value = heads_of(DTYPES[dtype], keys, width)
        mask = valid_of(valid, keys)
        blocks = Blocks.of(mask, keys) if ranges else None
        given = gradient, value, mask, rule_of(direction, in_memory)
        if again:
            cut = attribution_mask.cuts_from_gradient(*given, blocks, valid == "all")
            attribution_mask.words_again(*given, cut, blocks, valid == "all")
        else:
            attribution_mask.words_from_gradient(*given, blocks, valid == "all")

    kinds = ["ranges" if ranges else "", "numbers in memory" if in_memory else "", "again" if again else ""]
    name = f"{dtype}, width {width}, {keys} keys, valid: {valid}, {direction}"
    return Case(", ".join(filter(None, [name, *kinds])), call)


def selection_as_bytes(of_gradient: str, of_value: str, width: int, keys: int, groups: int = HEADS) -> Case:
    """The mask of AD-DROP with a byte for each position."""

    def call() -> None:
        gradient = heads_of(DTYPES[of_gradient], keys, width).transpose(1, 2)
        value = heads_of(DTYPES[of_value], keys, width, groups)
        attribution_mask.keep_from_gradient(gradient, value, valid_of("keys", keys), rule_of("high"))

    return Case(f"bytes, {of_gradient} and {of_value}, width {width}, {keys} keys", call)


def selection_of_scores(keys: int, direction: str) -> Case:
    """The mask of AD-DROP from scores that are in memory."""

    def call() -> None:
        scores = torch.empty(BATCH, HEADS, keys, keys)
        attribution_mask.keep_from_scores(scores, valid_of("rows", keys), rule_of(direction))

    return Case(f"bytes, from scores, {keys} keys, {direction}", call)


def masks(keys: int, *dtypes: str) -> Iterator[Case]:
    """Masks as bits and as a bias of the scores, in these precisions."""
    valid = valid_of("rows", keys)
    of_valid = Bits(pack(valid), None, keys)
    keep = torch.empty(BATCH, HEADS, keys, keys, dtype=torch.bool)
    words = torch.empty(BATCH, HEADS, keys, of_valid.words.shape[-1], dtype=torch.int16)
    yield Case(f"{keys} keys", lambda: mask_bits.pack(keep))
    for given in (of_valid, None):
        yield Case(f"{keys} keys", lambda given=given: mask_bits.combined(PackedKeep(words, keys), given, True))
    for dtype in dtypes:
        yield Case(f"{dtype}, {keys} keys", lambda dtype=dtype: attention_mask.mask_of(keep, valid, DTYPES[dtype]))


def random_numbers(*shape: int) -> Iterator[Case]:
    """Draws of this shape for each example, with p as a number and in memory."""
    key, positions = torch.zeros((), dtype=torch.int32), torch.arange(BATCH)
    for p in (None, 0.1, torch.zeros(())):
        name = f"{list(shape)}, p {'in memory' if isinstance(p, Tensor) else p}"
        yield Case(name, lambda p=p: draws.uniform_at(key, positions, shape, p))
        if p is not None:
            yield Case(name, lambda p=p: draws.rows_below(key, p, 1000, shape[-1]))
    words = torch.empty(BATCH, *shape[:-1], dtype=torch.int32)
    yield Case(f"{list(shape)}", lambda: draws.uniform(words, shape[-1]))
    yield Case(f"{list(shape)}, below p", lambda: draws.are_below(words, torch.empty(BATCH, *shape)))


def mixed_weights(dtype: str, *of_keep: int, in_memory: bool = False) -> Iterator[Case]:
    """Weights that are mixed by a mask of this shape, and back, and gradients of which a part stays."""
    share = torch.zeros(()) if in_memory else 0.9
    x, y, z = (torch.empty(768, 3072, dtype=DTYPES[dtype]) for _ in range(3))
    key, keep = torch.zeros((), dtype=torch.int32), torch.empty(of_keep, dtype=torch.bool)
    name = f"{dtype}, keep {list(of_keep)}, share {'in memory' if in_memory else share}"
    yield Case(name, lambda: weights.mix(x, y, keep, None, share, key))
    yield Case(f"{name}, target", lambda: weights.mix(x, y, keep, z, share, key))
    yield Case(name, lambda: weights.unmix(x, y, keep, z, share))
    yield Case(name, lambda: weights.dropout_(x, share, key))


def passes(dtype: str) -> Iterator[Case]:
    """Passes over all weights, and hidden states that are mixed, in one precision."""
    x, y, z = (torch.empty(768, 3072, dtype=DTYPES[dtype]) for _ in range(3))
    mean, is_moved = torch.empty(768, 3072), torch.zeros((), dtype=torch.bool)
    yield Case(f"{dtype}, mean in fp32", lambda: foreach.average([mean], [x], 0.1))
    yield Case(dtype, lambda: foreach.pull([x], [y], None, 0.1))
    yield Case(f"{dtype}, target", lambda: foreach.pull([x], [y], [z], 0.1))
    yield Case(dtype, lambda: foreach.ascend([x], [y], [z], 0.1, [None], is_moved))
    yield Case(f"{dtype}, eta", lambda: foreach.ascend([x], [y], [z], 0.1, [0.01], is_moved))
    yield Case(dtype, lambda: foreach.restore([x], [y], is_moved))
    hidden, shares = torch.empty(4, 100, 768, dtype=DTYPES[dtype]), torch.empty(4, 100, 1)
    yield Case(dtype, lambda: mixed_rows.mixed_rows(hidden, torch.arange(4), shares, shares))


def selected() -> Iterator[Case]:
    """Every kernel, and the ways in which those of attention and of selection differ, most of it in bf16."""
    yield attention("bf16", 64, 512)
    yield attention("bf16", 64, 1536, "keys", dropout=True)  # so many queries that the forward has larger programs
    yield attention("bf16", 64, 500, "rows", empty=True, ranges=True, dropout=True)
    yield attention("fp16", 128, 512, "rows", empty=True, groups=4)
    yield attention("fp32", 64, 500, "keys", ranges=True)
    yield selection("bf16", 64, 100, "rows", "low")
    yield selection("bf16", 64, 256, "keys", "high", in_memory=True)
    yield selection("bf16", 32, 4096, "rows", "low", ranges=True)
    yield selection("fp32", 64, 1500, "all", "high")
    yield selection_of_scores(128, "high")
    yield from masks(100, "bf16")
    yield from random_numbers(12, 100)
    yield from mixed_weights("bf16", 768, 3072)
    yield from passes("bf16")


def every() -> Iterator[Case]:
    """The same for all precisions and widths, and for more lengths, from which the sizes of programs follow."""
    yield from selected()
    for dtype, width in product(DTYPES, WIDTHS):
        yield attention(dtype, width, 512)
        yield attention(dtype, width, 1536, "keys", dropout=True)
        yield attention(dtype, width, 512, "rows", empty=True, dropout=True)
        yield attention(dtype, width, 500, "rows", empty=True, ranges=True, dropout=True, groups=4)
        yield selection(dtype, width, 64, "keys", "low")
        yield selection(dtype, width, 128, "rows", "high")
        yield selection(dtype, width, 256, "all", "low")
        yield selection(dtype, width, 512, "keys", "high")
        yield selection(dtype, width, 1024, "rows", "low", ranges=True)
        yield selection(dtype, width, 2048, "all", "high")
        yield selection(dtype, width, 4096, "rows", "low", ranges=True)
        yield selection(dtype, width, 16384, "keys", "low", again=True)
        yield selection_as_bytes(dtype, dtype, width, 300, groups=4)
    for dtype in DTYPES:
        yield selection_as_bytes(dtype, dtype, 64, 1500)
    for keys in (128, 1500):
        yield selection_as_bytes("fp32", "fp16", 64, keys)
    for keys in (20, 512, 1500):
        yield selection_of_scores(keys, "low")
    for shape in ((768,), (12, 100, 100)):
        yield from random_numbers(*shape)
    yield from masks(512, *DTYPES)
    for dtype in DTYPES:
        yield from mixed_weights(dtype, 768, 1, in_memory=True)
        yield from mixed_weights(dtype, 1, 3072)
        yield from passes(dtype)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compiles the Triton kernels for NVIDIA cards, without a GPU.")
    parser.add_argument("--all", action="store_true", help="all precisions and widths: minutes for each card")
    parser.add_argument("--cards", type=int, nargs="+", choices=list(SHARED), default=[90], help="compute capabilities")
    options = parser.parse_args()
    compiler = Compiler()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder  # what was compiled before, with other versions perhaps, is not used
        for card in options.cards:
            compiler.run(card, every() if options.all else selected())
    problems = compiler.problems
    problems += [f"{name} is in no case." for name in sorted(kernels_of_the_package() - compiler.kernels)]
    print(f"{len(compiler.compiled)} variants compiled, {len(problems)} problems", *problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
