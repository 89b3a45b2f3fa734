"""Passes over all weights of a model on a GPU: one launch for all tensors, and every number is read and written once.

A table in device memory has the sizes and the addresses of all tensors. A program works on a chunk of one tensor, which
it finds in the table by its own number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .reference import step_factor

TILE = 1024  # numbers that a program works on at a time
CHUNK = 16 * TILE  # numbers of a program
_DTYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


@triton.jit
def _chunk(table_ptr, COUNT, PLACES: tl.constexpr, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the number of this program's tensor, its size, and the first number of the chunk."""
    places = tl.arange(0, PLACES)
    program = tl.program_id(0).to(tl.int64)
    ends = tl.load(table_ptr + COUNT + places, mask=places < COUNT, other=0)  # chunks up to the end of each tensor
    is_before = (ends <= program) & (places < COUNT)
    tensor = tl.sum(is_before.to(tl.int32), 0)
    first = tl.max(tl.where(is_before, ends, 0), 0)
    return tensor, tl.load(table_ptr + tensor), (program - first) * CHUNK


@triton.jit
def _pointer(table_ptr, row, tensor, COUNT, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the address of a tensor in one of the lists: a multiple of 16, so that four numbers load at once."""
    address = tl.load(table_ptr + (2 + row) * COUNT + tensor)
    return tl.multiple_of(address.to(tl.pointer_type(DTYPE)), 16)


@triton.jit
def _load(ptr, in_bounds):  # type: ignore[no-untyped-def]
    """Load from these addresses, and 0 where there is nothing. Without a mask, a thread loads four numbers at once."""
    return tl.load(ptr) if in_bounds is None else tl.load(ptr, mask=in_bounds, other=0.0)


@triton.jit
def _average_tile(mean_ptr, weight_ptr, share, in_bounds):  # type: ignore[no-untyped-def]
    mean = _load(mean_ptr, in_bounds).to(share.dtype)
    weight = _load(weight_ptr, in_bounds).to(share.dtype)
    away = weight - mean
    average = tl.where(share < 0.5, mean + share * away, weight - away * (1 - share))  # as torch.lerp
    tl.store(mean_ptr, average.to(mean_ptr.dtype.element_ty), mask=in_bounds)


@triton.jit(do_not_specialize_on_alignment=["share_ptr"])
def average_kernel(  # type: ignore[no-untyped-def]
    table_ptr, COUNT, share_ptr, OF_MEAN: tl.constexpr, OF_WEIGHT: tl.constexpr,
    PLACES: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    tensor, size, first = _chunk(table_ptr, COUNT, PLACES, CHUNK)
    mean_ptr = _pointer(table_ptr, 0, tensor, COUNT, OF_MEAN)
    weight_ptr = _pointer(table_ptr, 1, tensor, COUNT, OF_WEIGHT)
    share = tl.load(share_ptr)
    for start in range(0, CHUNK, TILE):
        at = first + start + tl.arange(0, TILE)
        if first + start + TILE <= size:
            _average_tile(mean_ptr + at, weight_ptr + at, share, None)
        else:
            _average_tile(mean_ptr + at, weight_ptr + at, share, at < size)


@triton.jit
def _pull_tile(gradient_ptr, weight_ptr, target_ptr, strength, in_bounds, HAS_TARGET: tl.constexpr):  # type: ignore[no-untyped-def]
    gradient = _load(gradient_ptr, in_bounds)
    away = _load(weight_ptr, in_bounds).to(strength.dtype)
    if HAS_TARGET:
        away -= _load(target_ptr, in_bounds).to(strength.dtype)
    tl.store(gradient_ptr, (gradient.to(strength.dtype) + strength * away).to(gradient.dtype), mask=in_bounds)


@triton.jit(do_not_specialize_on_alignment=["strength_ptr"])
def pull_kernel(  # type: ignore[no-untyped-def]
    table_ptr, COUNT, strength_ptr, HAS_TARGET: tl.constexpr,
    OF_GRADIENT: tl.constexpr, OF_WEIGHT: tl.constexpr, OF_TARGET: tl.constexpr,
    PLACES: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    tensor, size, first = _chunk(table_ptr, COUNT, PLACES, CHUNK)
    gradient_ptr = _pointer(table_ptr, 0, tensor, COUNT, OF_GRADIENT)
    weight_ptr = _pointer(table_ptr, 1, tensor, COUNT, OF_WEIGHT)
    target_ptr = _pointer(table_ptr, 2 if HAS_TARGET else 1, tensor, COUNT, OF_TARGET)
    strength = tl.load(strength_ptr)
    for start in range(0, CHUNK, TILE):
        at = first + start + tl.arange(0, TILE)
        if first + start + TILE <= size:
            _pull_tile(gradient_ptr + at, weight_ptr + at, target_ptr + at, strength, None, HAS_TARGET)
        else:
            _pull_tile(gradient_ptr + at, weight_ptr + at, target_ptr + at, strength, at < size, HAS_TARGET)


@triton.jit
def _squares(weight_ptr, gradient_ptr, eta, in_bounds, HAS_SCALE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return (T g)²."""
    scaled = _load(gradient_ptr, in_bounds).to(eta.dtype)
    if HAS_SCALE:
        scaled *= tl.abs(_load(weight_ptr, in_bounds).to(eta.dtype)) + eta
    return scaled * scaled


@triton.jit(do_not_specialize_on_alignment=["eta_ptr"])
def squares_kernel(  # type: ignore[no-untyped-def]
    table_ptr, COUNT, squares_ptr, eta_ptr, HAS_SCALE: tl.constexpr, OF_WEIGHT: tl.constexpr,
    PLACES: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Return the sum of the squares of T g over a chunk."""
    tensor, size, first = _chunk(table_ptr, COUNT, PLACES, CHUNK)
    weight_ptr = _pointer(table_ptr, 0, tensor, COUNT, OF_WEIGHT)
    gradient_ptr = _pointer(table_ptr, 2, tensor, COUNT, OF_WEIGHT)
    eta = tl.load(eta_ptr)
    total = tl.zeros([TILE], eta.dtype)
    for start in range(0, CHUNK, TILE):
        at = first + start + tl.arange(0, TILE)
        if first + start + TILE <= size:
            total += _squares(weight_ptr + at, gradient_ptr + at, eta, None, HAS_SCALE)
        else:
            total += _squares(weight_ptr + at, gradient_ptr + at, eta, at < size, HAS_SCALE)
    tl.store(squares_ptr + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def _ascend_tile(weight_ptr, trained_ptr, gradient_ptr, factor, eta, in_bounds, HAS_SCALE: tl.constexpr):  # type: ignore[no-untyped-def]
    weight = _load(weight_ptr, in_bounds)
    step = factor * _load(gradient_ptr, in_bounds).to(factor.dtype)
    wide = weight.to(factor.dtype)
    if HAS_SCALE:
        scale = tl.abs(wide) + eta
        step = step * scale * scale
    tl.store(trained_ptr, weight, mask=in_bounds)
    # A gradient that is not finite has the factor 0, and must not reach the weight.
    tl.store(weight_ptr, tl.where(factor == 0, wide, wide + step).to(weight.dtype), mask=in_bounds)


@triton.jit(do_not_specialize_on_alignment=["factor_ptr", "eta_ptr"])
def ascend_kernel(  # type: ignore[no-untyped-def]
    table_ptr, COUNT, factor_ptr, eta_ptr, HAS_SCALE: tl.constexpr, OF_WEIGHT: tl.constexpr,
    PLACES: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    tensor, size, first = _chunk(table_ptr, COUNT, PLACES, CHUNK)
    weight_ptr = _pointer(table_ptr, 0, tensor, COUNT, OF_WEIGHT)
    trained_ptr = _pointer(table_ptr, 1, tensor, COUNT, OF_WEIGHT)
    gradient_ptr = _pointer(table_ptr, 2, tensor, COUNT, OF_WEIGHT)
    factor, eta = tl.load(factor_ptr), tl.load(eta_ptr)
    for start in range(0, CHUNK, TILE):
        at = first + start + tl.arange(0, TILE)
        if first + start + TILE <= size:
            _ascend_tile(weight_ptr + at, trained_ptr + at, gradient_ptr + at, factor, eta, None, HAS_SCALE)
        else:
            _ascend_tile(weight_ptr + at, trained_ptr + at, gradient_ptr + at, factor, eta, at < size, HAS_SCALE)


@triton.jit(do_not_specialize_on_alignment=["moved_ptr"])
def restore_kernel(  # type: ignore[no-untyped-def]
    table_ptr, COUNT, moved_ptr, OF_WEIGHT: tl.constexpr,
    PLACES: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    if tl.load(moved_ptr) != 0:
        tensor, size, first = _chunk(table_ptr, COUNT, PLACES, CHUNK)
        weight_ptr = _pointer(table_ptr, 0, tensor, COUNT, OF_WEIGHT)
        trained_ptr = _pointer(table_ptr, 1, tensor, COUNT, OF_WEIGHT)
        for start in range(0, CHUNK, TILE):
            at = first + start + tl.arange(0, TILE)
            if first + start + TILE <= size:
                tl.store(weight_ptr + at, _load(trained_ptr + at, None))
            else:
                tl.store(weight_ptr + at, _load(trained_ptr + at, at < size), mask=at < size)


class _Lists(NamedTuple):
    """Lists of tensors in which all tensors of a list have one precision."""

    grid: tuple[int]
    table: Tensor
    wide: torch.dtype  # the precision of the computation
    dtypes: list[Any]
    sizes: dict[str, Any]

    @property
    def arguments(self) -> tuple[Tensor, int]:
        """The first arguments of a kernel."""
        return self.table, self.table.shape[1]

    def number(self, x: float | Tensor) -> Tensor:
        """Return a number on the device, in the precision of the computation."""
        return (
            x.to(self.wide) if isinstance(x, Tensor) else torch.full((), x, dtype=self.wide, device=self.table.device)
        )


def _by_dtypes(*lists: Sequence[Tensor]) -> Iterator[_Lists]:
    """Yield the lists, divided so that all tensors of a list have one precision."""
    groups: defaultdict[tuple[torch.dtype, ...], list[tuple[Tensor, ...]]] = defaultdict(list)
    for tensors in zip(*lists, strict=True):
        groups[tuple(x.dtype for x in tensors)].append(tensors)
    for dtypes, rows in groups.items():
        counts = [row[0].numel() for row in rows]
        chunks = list(accumulate(triton.cdiv(count, CHUNK) for count in counts))
        addresses = [[x.data_ptr() for x in column] for column in zip(*rows, strict=True)]
        if chunks[-1]:
            table = table_of([counts, chunks, *addresses], rows[0][0].device)
            wide = torch.float64 if torch.float64 in dtypes else torch.float32
            places = max(16, triton.next_power_of_2(len(rows)))
            sizes = {"PLACES": places, "CHUNK": CHUNK, "TILE": TILE, "num_warps": 8}
            yield _Lists((chunks[-1],), table, wide, [_DTYPES[dtype] for dtype in dtypes], sizes)


def table_of(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Return the numbers as int64 on the device, [rows, columns].

    They are arguments of kernels, so that it can be captured.

    Args:
        rows: the numbers.
        device: the device.
    """
    table = torch.zeros(len(rows), len(rows[0]), dtype=torch.int64, device=device)
    torch._foreach_add_(list(table.flatten().unbind()), [number for row in rows for number in row])
    return table


def average(averages: Sequence[Tensor], weights: Sequence[Tensor], share: float | Tensor) -> None:
    for each in _by_dtypes(averages, weights):
        average_kernel[each.grid](*each.arguments, each.number(share), *each.dtypes, **each.sizes)


def pull(
    gradients: Sequence[Tensor], weights: Sequence[Tensor], targets: Sequence[Tensor] | None, strength: float | Tensor
) -> None:
    lists = [gradients, weights] if targets is None else [gradients, weights, targets]
    for each in _by_dtypes(*lists):
        kinds = targets is not None, *each.dtypes[:2], each.dtypes[-1]
        pull_kernel[each.grid](*each.arguments, each.number(strength), *kinds, **each.sizes)


def ascend(
    weights: Sequence[Tensor],
    trained: Sequence[Tensor],
    gradients: Sequence[Tensor],
    rho: float | Tensor,
    etas: Sequence[float | None],
    is_moved: Tensor,
) -> None:
    lists, squares = [], []
    for eta in dict.fromkeys(etas):
        rows = [row for row, own in zip(zip(weights, trained, gradients, strict=True), etas, strict=True) if own == eta]
        lists += [(each, eta) for each in _by_dtypes(*zip(*rows, strict=True))]
    for each, eta in lists:
        squares.append(torch.empty(each.grid, dtype=each.wide, device=is_moved.device))
        kinds = eta is not None, each.dtypes[0]
        squares_kernel[each.grid](*each.arguments, squares[-1], each.number(eta or 0.0), *kinds, **each.sizes)
    factor = step_factor(torch.cat(squares), rho)
    for each, eta in lists:
        kinds = eta is not None, each.dtypes[0]
        ascend_kernel[each.grid](*each.arguments, each.number(factor), each.number(eta or 0.0), *kinds, **each.sizes)
    is_moved.fill_(True)


def restore(weights: Sequence[Tensor], trained: Sequence[Tensor], is_moved: Tensor) -> None:
    for each in _by_dtypes(weights, trained):
        restore_kernel[each.grid](*each.arguments, is_moved.view(torch.uint8), each.dtypes[0], **each.sizes)
    is_moved.fill_(False)
