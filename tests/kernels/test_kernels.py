"""The implementations of each kernel compared with its reference. Without a GPU, Triton runs in its interpreter.

Gradients and values of small integers have exact products in every precision and many ties: there all implementations
must agree exactly, as on given scores. Scores of random numbers may differ by rounding, so a position whose score is
next to the threshold of its row may be kept by one implementation and dropped by another.
"""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from typing import Any

import pytest
import torch

import attendrop
from attendrop import kernels
from attendrop.kernels import attribution_mask as kernel
from attendrop.kernels.attention_mask import Mask
from attendrop.kernels.attribution_mask import api, cpu, reference
from attendrop.kernels.draws import as_factors, bernoulli, bernoulli_rows, uniform
from attendrop.kernels.draws.reference import signed, words_torch
from attendrop.random import as_keys, key_of
from helpers import oracles
from helpers.interpreter import allow_ranges

HAS_GPU = torch.cuda.is_available()
HAS_TRITON = importlib.util.find_spec("triton") is not None
DEVICE = "cuda" if HAS_GPU else "cpu"

if HAS_TRITON and not HAS_GPU:
    allow_ranges()

needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs triton (pip install triton)")
# numpy, in the interpreter, on arithmetic with infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

KEY = key_of(3, 14, 2)


def on_gpu(*values: Any, id: str | None = None) -> Any:
    """Parameters of a case that needs a GPU, because the interpreter is too slow."""
    return pytest.param(*values, id=id, marks=pytest.mark.gpu)


def valid_of(kind: str, batch: int, heads: int, queries: int, keys: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(7)
    if kind == "full":
        return torch.ones(1, 1, 1, keys, dtype=torch.bool)
    if kind == "padding":
        lengths = torch.randint(1, keys + 1, (batch, 1, 1, 1), generator=g)
        return torch.arange(keys) < lengths.index_fill(0, torch.tensor([0]), keys)
    if kind == "causal":
        return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    valid = torch.rand(batch, heads, queries, keys, generator=g) < 0.6
    valid[:, :, ::3] = False  # rows in which nothing is valid
    return valid


def integers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def on(device: str, *tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.to(device) for tensor in tensors]


def rule_of(p: float, q: float, key: Any, positions: torch.Tensor, direction: str = "high") -> reference.DropRule:
    return reference.DropRule(p, q, key, positions, direction)


def run(impl: str, device: str, gradient: Any, value: Any, valid: Any, p: float, q: float, **more: Any) -> torch.Tensor:
    positions = torch.arange(len(gradient)) * 7 + 3
    gradient, value, valid, positions = on(device, gradient, value, valid, positions)
    return kernel.keep_from_gradient(gradient, value, valid, rule_of(p, q, KEY, positions, **more), impl).cpu()


# --- the reference


@pytest.mark.parametrize("direction", ["high", "low"])
def test_reference_matches_a_slow_sort_of_gradient_times_value(direction: str) -> None:
    gradient, value = integers(2, 5, 4, 6), integers(2, 2, 7, 6, seed=1)
    valid = valid_of("any", 2, 4, 5, 7)
    scores = torch.zeros(2, 4, 5, 7)
    for b in range(2):
        for h in range(4):
            scores[b, h] = gradient[b, :, h] @ value[b, h // 2].T  # two heads share a value
    draws = uniform(KEY, torch.arange(2) * 7 + 3, (4, 5, 7))
    expected, _ = oracles.literal_keep(scores, valid, 0.4, 0.6, draws, direction)
    assert torch.equal(run("reference", "cpu", gradient, value, valid, 0.4, 0.6, direction=direction), expected)


def test_nan_is_never_a_candidate_and_ranks_above_all_numbers() -> None:
    row = torch.tensor([3.0, float("nan"), 1.0, 2.0, float("inf"), 0.0]).view(1, 1, 1, 6)
    valid = torch.tensor([True, True, True, True, True, False])
    assert kernel.candidates(row, valid, 0.6).flatten().tolist() == [True, False, False, False, True, False]
    assert kernel.candidates(row, valid, 0.6, "low").flatten().tolist() == [True, False, True, True, False, False]
    assert not kernel.candidates(row, valid, 0.2).any()  # the threshold is the NaN


def test_half_precision_scores_are_computed_in_float32() -> None:
    gradient, value = torch.randn(1, 64, 2, 16).bfloat16(), torch.randn(1, 2, 64, 16).bfloat16()
    assert kernel.scores(gradient, value).dtype == torch.float32
    dropped = ~run("reference", "cpu", gradient, value, valid_of("full", 1, 2, 64, 64), 0.3, 1.0)
    assert (dropped.sum(-1) == 64 - int(64 * 0.7)).all()  # bf16 scores would have ties


# --- the size of the candidate region, exactly


def exact_rank(n: int, percent: int, direction: str) -> int:
    """The index of the threshold by rational arithmetic."""
    p = Fraction(percent, 100)
    return n * (1 - p) // 1 if direction == "high" else n * p // 1 - 1


@pytest.mark.parametrize("direction", ["high", "low"])
def test_threshold_index_is_exact_for_every_length_and_percentage(direction: str) -> None:
    n = torch.arange(1025)
    for percent in range(1, 100):
        expected = [exact_rank(length, percent, direction) for length in range(1025)]
        assert reference.rank(n, percent / 100, direction).tolist() == expected, percent


def candidates_of_each_length(longest: int, p: float, direction: str, impl: str) -> list[int]:
    """How many positions of rows with 1, 2 … `longest` valid entries are candidates."""
    scores = torch.arange(longest).float().expand(1, 1, longest, longest).to(DEVICE if impl == "triton" else "cpu")
    valid = torch.ones(longest, longest, dtype=torch.bool, device=scores.device).tril()
    rule = rule_of(p, 1.0, KEY, torch.zeros(1, dtype=torch.long, device=scores.device), direction)
    return (~kernel.keep_from_scores(scores, valid, rule, impl)).sum(-1).flatten().tolist()


def exact_candidates(longest: int, percent: int, direction: str) -> list[int]:
    lengths = range(1, longest + 1)
    if direction == "high":
        return [n - exact_rank(n, percent, direction) for n in lengths]
    return [exact_rank(n, percent, direction) + 1 for n in lengths]


@pytest.mark.parametrize("direction", ["high", "low"])
@pytest.mark.parametrize(
    ("impl", "longest", "percentages"),
    [
        ("reference", 512, (10, 30, 60, 70, 80, 90, 99)),
        ("cpu", 1024, range(1, 100, 7)),
        ("cpu", 512, (10, 30, 60, 70, 80, 90, 99)),
        pytest.param("triton", 64, (30, 80, 90), marks=needs_triton),
        on_gpu("triton", 1024, range(1, 100)),
    ],
)
def test_candidate_region_is_exact(impl: str, longest: int, percentages: Any, direction: str) -> None:
    for percent in percentages:
        expected = exact_candidates(longest, percent, direction)
        assert candidates_of_each_length(longest, percent / 100, direction, impl) == expected, percent


def test_keep_mask_is_a_public_name() -> None:
    scores, valid = torch.tensor([[[[1.0, 4.0, 3.0, 2.0, 9.0]]]]), torch.tensor([True, True, True, True, False])
    draws = torch.tensor([[[[0.0, 0.9, 0.1, 0.0, 0.0]]]])
    keep = attendrop.keep_mask(scores, valid, 0.5, 0.5, draws)
    assert keep.tolist() == [[[[True, True, False, True, True]]]]
    low = attendrop.keep_mask(scores, valid, 0.5, 1.0, direction="low")
    assert low.tolist() == [[[[False, True, True, False, True]]]]


# --- the CPU's


@pytest.mark.parametrize("direction", ["high", "low"])
@pytest.mark.parametrize("kind", ["full", "padding", "causal", "any"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (2, 2), (3, 17), (40, 40), (5, 129)])
def test_cpu_matches_the_reference(
    queries: int, keys: int, kind: str, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "_CHUNK", 200)  # several chunks, the last one short
    gradient, value = integers(3, queries, 4, 5), integers(3, 2, keys, 5, seed=1)
    valid = valid_of(kind, 3, 4, queries, keys)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for p, q in ((0.3, 0.5), (1.0, 1.0), (0.0, 1.0), (0.9, 0.0)):
            actual = [
                run(impl, "cpu", gradient.to(dtype), value.to(dtype), valid, p, q, direction=direction)
                for impl in ("reference", "cpu", "auto")
            ]
            assert torch.equal(actual[0], actual[1])
            assert torch.equal(actual[0], actual[2])


def test_cpu_matches_the_reference_on_random_scores() -> None:
    torch.manual_seed(0)
    gradient, value = torch.randn(4, 64, 3, 16), torch.randn(4, 3, 64, 16)
    valid = valid_of("padding", 4, 3, 64, 64)
    assert torch.equal(*(run(impl, "cpu", gradient, value, valid, 0.3, 0.4) for impl in ("reference", "cpu")))
    scores = kernel.scores(gradient, value)
    scores[0, 0, 0, :3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    actual = [
        kernel.keep_from_scores(scores, valid, rule_of(0.5, 1.0, KEY, torch.arange(4)), i) for i in ("reference", "cpu")
    ]
    assert torch.equal(*actual)


# --- Triton's

SHAPES = [  # queries, keys, width, and why
    pytest.param(1, 1, 1, "full", "high", "float32", id="nothing to select from"),
    pytest.param(2, 2, 16, "padding", "low", "float16", id="two keys"),
    pytest.param(3, 3, 8, "causal", "high", "float32", id="narrower than a tile of the matrix unit"),
    pytest.param(17, 17, 24, "any", "low", "float32", id="one more than a tile, width no power of two"),
    pytest.param(5, 129, 80, "padding", "high", "float16", id="one more than a power of two, width of two steps"),
    pytest.param(70, 127, 64, "causal", "low", "float32", id="more rows than a program has"),
    pytest.param(2, 1030, 16, "padding", "high", "float32", id="keys in tiles"),
]
LARGE = [
    on_gpu(47, 47, 64, "padding", "high", "bfloat16", id="CoLA"),
    on_gpu(128, 128, 64, "full", "high", "bfloat16", id="RTE"),
    on_gpu(256, 256, 64, "padding", "high", "bfloat16", id="the benchmark's"),
    on_gpu(256, 256, 64, "causal", "low", "bfloat16", id="causal"),
    on_gpu(256, 256, 64, "full", "high", "float32", id="single precision"),
    on_gpu(100, 1000, 128, "any", "low", "bfloat16", id="a row of few tiles"),
    on_gpu(64, 4096, 64, "causal", "high", "float16", id="the longest row"),
    on_gpu(9, 2500, 256, "padding", "low", "bfloat16", id="wide heads"),
]


@needs_triton
@pytest.mark.parametrize(("queries", "keys", "width", "kind", "direction", "dtype"), SHAPES + LARGE)
def test_triton_matches_the_reference_on_exact_products(
    queries: int, keys: int, width: int, kind: str, direction: str, dtype: str
) -> None:
    batch, heads, groups = (2, 4, 2) if HAS_GPU else (1, 2, 1)
    gradient, value = integers(batch, queries, heads, width), integers(batch, groups, keys, width, seed=1)
    gradient[:, 1::4] = 0  # rows of nothing but ties
    gradient, value = gradient.to(getattr(torch, dtype)), value.to(getattr(torch, dtype))
    valid = valid_of(kind, batch, heads, queries, keys)
    for p, q in ((0.3, 0.6), (0.8, 1.0)) if HAS_GPU else ((0.4, 0.7),):
        expected, actual = (
            run(impl, DEVICE, gradient, value, valid, p, q, direction=direction) for impl in ("reference", "triton")
        )
        assert torch.equal(actual, expected)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, on_gpu(torch.float16), on_gpu(torch.bfloat16)])
def test_triton_matches_the_reference_up_to_rounding(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    batch, heads, length, width = (8, 12, 256, 64) if HAS_GPU else (1, 1, 40, 32)
    gradient, value = torch.randn(batch, length, heads, width), torch.randn(batch, heads, length, width)
    gradient, value, p = gradient.to(dtype), value.to(dtype), 0.3
    valid = valid_of("padding", batch, heads, length, length)
    # a GPU's reference may round to tf32
    expected, actual = (
        ~run(*where, gradient, value, valid, p, 1.0) for where in (("reference", "cpu"), ("triton", DEVICE))
    )
    n = valid.sum(-1).expand(batch, heads, length)
    assert torch.equal(actual.sum(-1), n - (n * (1 - p)).floor().long())
    scores = kernel.scores(gradient.double(), value.double())
    threshold = scores.masked_fill(~expected, float("inf")).amin(-1, keepdim=True)
    near = (scores - threshold).abs() < 1e-5 * scores.abs().amax(-1, keepdim=True)
    assert not ((actual != expected) & ~near).any()
    assert (actual != expected).float().mean() < 1e-4


@needs_triton
def test_mixed_precision_is_multiplied_in_float32() -> None:
    """With fp16 the gradient is unscaled to fp32, while the values are fp16."""
    gradient, value = integers(1, 9, 2, 16) * 2.0**-40, integers(1, 2, 9, 16, seed=1).half()
    valid = valid_of("full", 1, 2, 9, 9)
    expected, actual = (run(impl, DEVICE, gradient, value, valid, 0.4, 0.7) for impl in ("reference", "triton"))
    assert torch.equal(actual, expected)
    assert not actual.all()


def wild_rows(keys: int) -> torch.Tensor:
    """Extreme rows, on which an approximate threshold would be wrong: [1, 1, Q, K]."""
    g = torch.Generator().manual_seed(2)
    normal = torch.randn(keys, generator=g)
    rows = [
        normal,
        normal * 10.0 ** torch.randint(-38, 38, (keys,), generator=g),  # of all magnitudes
        torch.cat([normal[: keys // 2] * 1e-42, normal[keys // 2 :] * 1e-40]),  # denormal
        torch.zeros(keys).copysign(normal),  # both zeros
        torch.full((keys,), 0.1),
        torch.where(normal > 0, 1e30, -1e30),
        torch.where(normal > 1.2, 5.0, normal.round()),
        torch.where(normal > 0.5, float("inf"), torch.where(normal < -0.5, float("-inf"), normal)),
        torch.where(normal > 0, 1.0 + normal * 1e-6, 1.0),  # a few units in the last place apart
        normal.exp().exp(),
    ]
    return torch.stack(rows).view(1, 1, -1, keys)


@needs_triton
@pytest.mark.parametrize("direction", ["high", "low"])
@pytest.mark.parametrize("keys", [33, on_gpu(1030), on_gpu(4096)])
def test_triton_selects_exactly_from_extreme_rows(keys: int, direction: str) -> None:
    scores = wild_rows(keys)
    valid = valid_of("full", 1, 1, 10, keys)
    positions = torch.tensor([5])
    for p in (0.04, 0.3):
        expected = kernel.keep_from_scores(scores, valid, rule_of(p, 1.0, KEY, positions, direction), "reference")
        actual = kernel.keep_from_scores(
            *on(DEVICE, scores, valid), rule_of(p, 1.0, KEY, positions.to(DEVICE), direction), "triton"
        )
        assert torch.equal(actual.cpu(), expected)


@needs_triton
@pytest.mark.parametrize(
    ("keys", "direction"), [(1100, "low"), (2100, "high"), on_gpu(2500, "high"), on_gpu(9000, "low")]
)
def test_triton_selects_exactly_from_long_rows(keys: int, direction: str) -> None:
    """The scores of a long row are collected around its threshold, unless nothing is there but ties."""
    scores = torch.randn(1, 1, 10, keys, generator=torch.Generator().manual_seed(4))
    scores[..., 1, :] = 0.0  # a padded query has no gradient
    scores[..., 2, :] = 7.5
    scores[..., 3, :] = scores[..., 3, :].round()
    scores[..., 4, ::7] = float("-inf")
    scores[..., 8, ::8] = 0.5 + 1e-3 * scores[..., 8, ::8]  # one thread has more of them than it can collect
    scores[..., 9, 1::2] = 5.0 + scores[..., 9, 1::2].abs()  # what is read as a sample says little of the row
    valid = torch.ones(1, 1, 10, keys, dtype=torch.bool)
    valid[..., 5, :] = False
    valid[..., 6, :] = torch.arange(keys) == keys - 1
    valid[..., 7, : keys // 2] = False
    positions = torch.tensor([5])
    expected = kernel.keep_from_scores(scores, valid, rule_of(0.3, 0.9, KEY, positions, direction), "reference")
    rule = rule_of(0.3, 0.9, KEY, positions.to(DEVICE), direction)
    assert torch.equal(kernel.keep_from_scores(*on(DEVICE, scores, valid), rule, "triton").cpu(), expected)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_triton_mask_uses_the_reference_draws(dtype: torch.dtype) -> None:
    """With p = 1 all positions are candidates, so the mask depends on the draws only."""
    positions = torch.tensor([0, 900_000])
    scores, valid = integers(2, 1, 6, 19).to(dtype), valid_of("full", 2, 1, 6, 19)
    draws = uniform(KEY, positions, (1, 6, 19))
    key = torch.tensor(signed(KEY), dtype=torch.int32, device=DEVICE)
    # a limit that is one of the draws, and its neighbour
    at, above = draws[1, 0, 2, 3], draws[0, 0, 0, 0].nextafter(torch.ones(()))
    for q, one in ((at.item(), KEY), (above.item(), key)):  # a captured graph reads its key from the device
        keep = kernel.keep_from_scores(*on(DEVICE, scores, valid), rule_of(1.0, q, one, positions.to(DEVICE)), "triton")
        assert torch.equal(keep.cpu(), draws >= q)


@needs_triton
def test_nan_is_kept_and_leaves_other_rows_unchanged() -> None:
    scores, valid = integers(1, 1, 4, 20), valid_of("full", 1, 1, 4, 20)
    expected = kernel.keep_from_scores(scores, valid, rule_of(0.5, 1.0, KEY, torch.tensor([0])), "reference")
    scores[0, 0, 2, ::2] = float("nan")
    actual = kernel.keep_from_scores(
        *on(DEVICE, scores, valid), rule_of(0.5, 1.0, KEY, torch.tensor([0], device=DEVICE)), "triton"
    ).cpu()
    assert actual[0, 0, 2, ::2].all()
    assert torch.equal(actual[0, 0, [0, 1, 3]], expected[0, 0, [0, 1, 3]])


@needs_triton
def test_empty_batch_gives_an_empty_mask() -> None:
    empty = run("triton", DEVICE, integers(0, 3, 2, 8), integers(0, 2, 3, 8), valid_of("full", 1, 2, 3, 3), 0.3, 0.3)
    assert empty.shape == (0, 2, 3, 3)


@pytest.mark.gpu
def test_attribution_map_is_never_written_to_memory() -> None:
    x = torch.randn(16, 256, 12, 64, device="cuda", dtype=torch.bfloat16)
    valid, positions = valid_of("full", 16, 12, 256, 256).cuda(), torch.arange(16, device="cuda")
    for _ in range(2):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        keep = kernel.keep_from_gradient(x, x.transpose(1, 2), valid, rule_of(0.3, 0.3, KEY, positions))
        peak = torch.cuda.max_memory_allocated() - before
    assert keep.numel() <= peak < 1.1 * keep.numel()  # one byte for each position, where a map in bf16 takes two


@pytest.mark.gpu
def test_captured_launch_reads_its_key_at_replay() -> None:
    x = torch.randn(2, 64, 4, 32, device="cuda")
    valid, positions = valid_of("full", 2, 4, 64, 64).cuda(), torch.arange(2, device="cuda")
    key = torch.zeros((), dtype=torch.int32, device="cuda")

    def launch(key: Any) -> torch.Tensor:
        return kernel.keep_from_gradient(x, x.transpose(1, 2), valid, rule_of(0.3, 0.5, key, positions))

    launch(key)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        keep = launch(key)
    for number in (17, key_of(0, 1, 2)):
        key.fill_(signed(number))
        graph.replay()
        assert torch.equal(keep, launch(number))


# --- draws


@needs_triton
@pytest.mark.parametrize("shape", [(1, 1), (2, 5, 7), (3, 1030), (0, 4)], ids=str)
def test_triton_draws_match_the_reference(shape: tuple[int, ...]) -> None:
    from attendrop.kernels.draws import triton

    positions = torch.tensor([0, 3, 70_000])
    for key in (KEY, as_keys([0, KEY, 2**32 - 1]), as_keys([7, KEY]).unsqueeze(1)):
        expected = uniform(key, positions, shape)
        words = words_torch(key, positions, shape[:-1], "cpu").to(DEVICE)
        assert torch.equal(triton.uniform(words, shape[-1]).cpu(), expected)
        p = torch.rand(expected.shape, generator=torch.Generator().manual_seed(0))
        p.flatten()[::3] = expected.flatten()[::3]  # a draw is not below itself
        assert torch.equal(triton.are_below(words, p.to(DEVICE)).cpu(), expected < p)
        assert torch.equal(bernoulli(p, key, positions), expected < p)


@needs_triton
@pytest.mark.parametrize(
    "shape", [(1,), (1100,), (3, 5), (1, 4), (2, 3, 7), (1, 1, 1), (4, 1, 1030), (2, 0, 3)], ids=str
)
def test_triton_draws_from_positions_match_the_reference(shape: tuple[int, ...]) -> None:
    from attendrop.kernels.draws import triton

    positions = torch.tensor([0, 3, 70_000])
    for key in (KEY, 0, 2**32 - 1):
        expected = uniform(key, positions, shape)
        on_device = torch.tensor(signed(key), dtype=torch.int32, device=DEVICE)
        assert torch.equal(triton.uniform_at(on_device, positions.to(DEVICE), shape).cpu(), expected)
        for p in (0.3, 1.0, torch.tensor(0.3)):
            actual = triton.uniform_at(
                on_device, positions.to(DEVICE), shape, p.to(DEVICE) if isinstance(p, torch.Tensor) else p
            )
            assert torch.equal(actual.cpu(), as_factors(expected, p))
        assert torch.equal(uniform(key, positions, shape, DEVICE).cpu(), expected)


@needs_triton
@pytest.mark.parametrize("shape", [(1, 1), (5, 1), (3, 40), (2, 1300), (1200, 2)])
def test_triton_rows_match_the_reference(shape: tuple[int, int]) -> None:
    from attendrop.kernels.draws import triton

    rows, n = shape
    expected = uniform(KEY, torch.arange(rows), (n,)) < 0.3
    key = torch.tensor(signed(KEY), dtype=torch.int32, device=DEVICE)
    assert torch.equal(triton.rows_below(key, 0.3, rows, n).cpu(), expected)
    assert torch.equal(triton.rows_below(key, torch.tensor(0.3, device=DEVICE), rows, n).cpu(), expected)
    assert torch.equal(bernoulli_rows(0.3, KEY, rows, n, DEVICE).cpu(), expected)


@pytest.mark.gpu
def test_gpu_draws_match_the_cpu() -> None:
    positions, keys = torch.tensor([0, 3, 70_000]), as_keys([7, KEY]).unsqueeze(1)
    p = torch.rand(2, 3, 5, 7)
    assert torch.equal(uniform(KEY, positions.cuda(), (5, 7), "cuda").cpu(), uniform(KEY, positions, (5, 7)))
    actual = bernoulli(p.cuda(), keys.cuda(), positions.cuda())
    assert torch.equal(actual.cpu(), bernoulli(p, keys, positions))


# --- the mask that attention takes


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("keep_shape", "valid_shape"),
    [
        ((2, 3, 5, 7), (2, 1, 1, 7)),
        ((2, 1, 70, 70), (1, 1, 70, 70)),  # for all heads; more rows than a program has
        ((1, 1, 1, 33), (2, 1, 1, 33)),
        ((9, 9), (2, 2, 9, 9)),
        ((1, 2, 3, 1030), (1030,)),  # keys in tiles
        ((0, 2, 3, 3), (3,)),
    ],
    ids=str,
)
def test_triton_attention_mask_matches_the_reference(
    keep_shape: tuple[int, ...], valid_shape: tuple[int, ...], dtype: Any
) -> None:
    from attendrop.kernels.attention_mask.triton import mask_of

    g = torch.Generator().manual_seed(3)
    keep, valid = torch.rand(keep_shape, generator=g) < 0.5, torch.rand(valid_shape, generator=g) < 0.8
    keep[..., 0::3, :] = False  # rows that lose everything
    for given in (keep, keep.transpose(-1, -2).contiguous().transpose(-1, -2)):
        expected, actual = Mask.of(given, valid, dtype), mask_of(*on(DEVICE, given, valid), dtype)
        assert torch.equal(actual.bias.cpu(), expected.bias.expand(actual.bias.shape))
        assert torch.equal(actual.empty.cpu(), expected.empty.expand(actual.empty.shape))
    assert not keep.numel() or expected.empty.any()


def test_attention_mask_has_bias_empty_rows_and_keep() -> None:
    keep = torch.tensor([[True, False, True], [False, False, True], [True, True, True]])
    mask = Mask.of(keep, torch.tensor([True, True, False]), torch.float32)
    inf = float("inf")
    assert mask.bias.tolist() == [[0, -inf, -inf], [0, 0, -inf], [0, 0, -inf]]
    assert mask.empty.flatten().tolist() == [False, True, False]
    assert mask.keep.tolist() == [[True, False, False], [False, False, False], [True, True, False]]


# --- the choice


def test_unsupported_inputs_are_refused() -> None:
    gradient, value, valid = integers(1, 3, 2, 4), integers(1, 2, 3, 4), valid_of("full", 1, 2, 3, 3)
    for changes, message in (
        ({"impl": "cuda"}, "impl is 'cuda'; it must be one of 'auto', 'reference', 'cpu', 'triton'"),
        ({"direction": "up"}, "direction is 'up'; it must be one of 'high', 'low'"),
        ({"valid": valid.float()}, "valid is torch.float32"),
        ({"valid": valid[..., :2]}, "broadcastable to \\[1, 2, 3, 3\\]"),
        ({"value": value[..., :3]}, "value is \\[1, 2, 3, 3\\]"),
        ({"positions": torch.arange(2)}, "positions is \\[2\\]"),
        ({"gradient": gradient.double(), "impl": "triton"}, "not float64"),
    ):
        rule = {"p": 0.3, "q": 0.3, "key": KEY, "positions": torch.arange(1), "direction": "high"}
        others = {name: given for name, given in changes.items() if name not in rule}
        rule |= {name: given for name, given in changes.items() if name in rule}
        arguments = {"gradient": gradient, "value": value, "valid": valid} | others
        with pytest.raises(ValueError, match=message):
            kernel.keep_from_gradient(**arguments, rule=rule_of(**rule))
    if HAS_GPU:
        with pytest.raises(ValueError, match="impl is 'cpu', and the tensors are on cuda"):
            run("cpu", "cuda", gradient, value, valid, 0.3, 0.3)
    assert reference.rank(torch.tensor([10, 7, 1, 0]), 0.3).tolist() == [7, 4, 0, 0]
    assert reference.rank(torch.tensor([10, 7, 1, 0]), 0.3, "low").tolist() == [2, 1, -1, -1]


def test_missing_triton_is_logged_once_with_its_replacement(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: None)
    kernels.has_triton.cache_clear()
    try:
        for _ in range(2):
            assert api._choose("auto", gpu, torch.bfloat16) is reference
    finally:
        kernels.has_triton.cache_clear()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert api._choose("auto", gpu, torch.float64) is reference
    assert api._choose("auto", torch.device("cpu"), torch.bfloat16) is cpu


# --- the same as bits


@needs_triton
@pytest.mark.parametrize(
    ("queries", "keys", "kind", "direction"),
    [(1, 1, "full", "high"), (17, 70, "any", "low"), (20, 20, "causal", "high")]
    + [pytest.param(3, 1030, "padding", "high", marks=pytest.mark.slow)]
    + [on_gpu(n, n, kind, "high") for n in (17, 255, 4097) for kind in ("padding", "causal")],
)
def test_bits_of_the_mask_match_the_reference(queries: int, keys: int, kind: str, direction: str) -> None:
    from attendrop.kernels.mask_bits import Blocks, bits_of_valid

    gradient, value = integers(1, queries, 2, 16), integers(1, 1, keys, 16, seed=1)
    gradient[:, 1::4] = 0  # rows of nothing but ties
    valid = valid_of(kind, 1, 2, queries, keys)
    positions = torch.tensor([5])
    for p, q in ((0.4, 0.7), (1.0, 1.0)):  # the second loses everything
        rule = rule_of(p, q, KEY, positions, direction)
        expected = Mask.of(kernel.keep_from_gradient(gradient, value, valid, rule, "reference"), valid, torch.float32)
        given = on(DEVICE, gradient, value, valid)
        numbers = [torch.tensor(x, dtype=torch.float64, device=DEVICE) for x in (p, q)]
        in_memory = rule_of(*numbers, KEY, positions.to(DEVICE), direction)  # type: ignore[arg-type]
        of_valid = bits_of_valid(given[2]), Blocks.of(given[2], queries)
        actual = kernel.bits_from_gradient(*given, *of_valid, in_memory)
        selected = kernel.SelectedBits(*given, *of_valid, in_memory, triton_cut(*given, in_memory))
        for bits in (actual.bits(), selected.bits()):
            assert torch.equal(bits.empty.cpu(), expected.empty.expand(bits.empty.shape))
            assert torch.equal(bits.allowed.cpu(), (expected.bias == 0).expand(bits.allowed.shape))
            assert torch.equal(bits.keep.cpu(), expected.keep.expand(bits.allowed.shape))


@needs_triton
@pytest.mark.parametrize(("queries", "keys"), [(20, 640), (20, 256), on_gpu(300, 1024), on_gpu(300, 4096)])
def test_bits_of_rows_without_padding_match_the_reference(queries: int, keys: int) -> None:
    gradient, value = (x.half() for x in (integers(1, queries, 1, 16), integers(1, 1, keys, 16, seed=1)))
    valid, positions = valid_of("full", 1, 1, queries, keys), torch.tensor([3])
    gradient, value, valid, positions = on(DEVICE, gradient, value, valid, positions)
    rule = rule_of(0.3, 0.4, KEY, positions)
    expected = kernel.keep_from_gradient(gradient, value, valid, rule, "reference")
    actual = kernel.bits_from_gradient(gradient, value, valid, None, None, rule)
    assert torch.equal(actual.bits().keep, expected)


@pytest.mark.gpu
@pytest.mark.parametrize(("batch", "length", "kind"), [(4, 2048, "full"), (1, 8192, "full"), (3, 2100, "padding")])
def test_long_random_rows_have_the_expected_candidate_count(batch: int, length: int, kind: str) -> None:
    """Search and write compute the same scores, to the last bit, or rows would lose the position at their threshold."""
    from attendrop.kernels.mask_bits import Blocks, bits_of_valid

    torch.manual_seed(0)
    gradient = torch.randn(batch, length, 4, 64, device="cuda").bfloat16()
    value = torch.randn(batch, 4, length, 64, device="cuda").bfloat16()
    valid = valid_of(kind, batch, 4, length, length).cuda()
    of_valid = (None, None) if kind == "full" else (bits_of_valid(valid), Blocks.of(valid, length))
    rule = rule_of(0.3, 1.0, KEY, torch.arange(batch, device="cuda"))
    actual = kernel.bits_from_gradient(gradient, value, valid, *of_valid, rule).bits()
    n = valid.expand(batch, 1, 1, length).sum(-1)
    too_many = (n - (n * 0.7 + 5e-10).floor()) - (n - actual.keep.sum(-1))
    assert (too_many == 0).float().mean() > 0.99  # a few rows have a tie at their threshold
    assert too_many.abs().max() <= 3


def triton_cut(*given: Any) -> torch.Tensor:
    from attendrop.kernels.attribution_mask import triton

    return triton.cuts_from_gradient(*given)


@needs_triton
def test_strengths_in_device_memory_match_python_numbers() -> None:
    scores, valid = torch.randn(1, 2, 9, 33, generator=torch.Generator().manual_seed(0)), torch.ones(33).bool()
    positions = torch.tensor([2])
    for p, q in ((0.3, 0.4), (0.8, 1.0), (0.5, 0.0), (0.0, 0.5)):
        for direction in ("high", "low"):
            expected = kernel.keep_from_scores(scores, valid, rule_of(p, q, KEY, positions, direction), "reference")
            numbers = [torch.tensor(x, dtype=torch.float64, device=DEVICE) for x in (p, q)]
            rule = rule_of(*numbers, KEY, positions.to(DEVICE), direction)  # type: ignore[arg-type]
            assert torch.equal(kernel.keep_from_scores(*on(DEVICE, scores, valid), rule, "triton").cpu(), expected)


def test_bits_are_stored_while_they_are_small() -> None:
    from attendrop.kernels.attribution_mask.bits import are_stored

    for length, stored in ((1024, True), (8192, True), (16384, False)):
        x = torch.empty(1, length, 12, 64, dtype=torch.bfloat16, device="meta")
        assert are_stored(x, x.transpose(1, 2)) == stored
