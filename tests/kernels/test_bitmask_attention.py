"""Masks as bits, and attention that reads them, compared with their references. Without a GPU Triton interprets.

The interpreter has no products in bfloat16; float16 takes its place there.
"""

from __future__ import annotations

import importlib.util
import logging
from functools import reduce
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attendrop import ADDrop, Engine, Plan, Progress, RegularizedTrainer, ScoresDropout, bind
from attendrop.kernels import bitmask_attention
from attendrop.kernels.attention_mask import allowed_and_empty, as_keep
from attendrop.kernels.attribution_mask import bits as attribution_bits
from attendrop.kernels.bitmask_attention import Dropout, api
from attendrop.kernels.bitmask_attention import reference as attention_reference
from attendrop.kernels.mask_bits import Bits, Blocks, PackedKeep, bits_of_valid, combined, pack
from attendrop.kernels.mask_bits import reference as bits_reference
from helpers import zoo
from helpers.interpreter import allow_ranges
from helpers.precision import relative_error

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton (pip install triton)"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # numpy, in the interpreter, on infinities and NaN
]
if not HAS_GPU and importlib.util.find_spec("triton") is not None:
    allow_ranges()


def on_gpu(*values: Any) -> Any:
    """Parameters of a case that needs a GPU, because the interpreter is too slow."""
    return pytest.param(*values, marks=pytest.mark.gpu)


def random_keep(*shape: int, share: float = 0.6) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(3)) < share


def valid_of(kind: str, batch: int, length: int) -> Tensor | None:
    """The positions that a model lets attend."""
    everything = torch.ones(length, length, dtype=torch.bool)
    if kind in ("padding", "two keys"):  # the last example has one valid key, or two
        lengths = torch.linspace(length, 1 if kind == "padding" else 2, batch).int().view(batch, 1, 1, 1)
        return torch.arange(length) < lengths
    return {"full": None, "causal": everything.tril(), "window": everything.tril().triu(-7)}[kind]


# --- bits


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (2, 3, 5, 17), (1, 2, 20, 70), (2, 1, 1, 255), on_gpu((1, 2, 100, 4097))]
)
def test_bits_hold_a_mask_exactly(shape: tuple[int, int, int, int]) -> None:
    from attendrop.kernels.mask_bits import triton

    keep, some = random_keep(*shape), random_keep(shape[0], 1, 1, shape[3], share=0.8)
    some[..., 0] = True
    keep[:, :, ::3] = False  # rows that lose everything
    words = bits_reference.pack(keep)
    assert words.shape[-1] == -(-shape[-1] // 64) * 4
    assert torch.equal(bits_reference.unpack(words, shape[-1]), keep)
    assert torch.equal(triton.pack(keep.to(DEVICE)).cpu(), words)
    for valid in (some, torch.ones_like(some)):
        allowed, empty = allowed_and_empty(keep, valid)
        of_valid = None if valid.all() else bits_of_valid(valid)
        on_device = None if of_valid is None else Bits(of_valid.words.to(DEVICE), None, of_valid.keys)
        packed = PackedKeep(words.to(DEVICE), shape[-1])
        for actual in (
            combined(pack(keep), of_valid),
            triton.combined(packed, on_device),
            triton.combined(PackedKeep(packed.words.clone(), shape[-1]), on_device, in_place=True),
        ):
            assert torch.equal(actual.allowed.cpu(), allowed)
            assert torch.equal(actual.empty.cpu(), empty)
            assert torch.equal(actual.keep.cpu(), keep & valid)
            assert torch.equal(actual.words.cpu(), bits_reference.pack(allowed))  # keys that do not exist have no bit
        assert torch.equal(packed.words.cpu(), bits_reference.pack(keep))  # a mask of a plan is not written to


def test_blocks_are_those_with_a_valid_position() -> None:
    causal = Blocks.of(torch.ones(130, 200, dtype=torch.bool).tril(), 130)
    assert causal.keys.tolist() == [[[0, 1], [0, 2], [0, 3]]]
    assert causal.queries.tolist() == [[[0, 3], [1, 3], [2, 3], [0, 0]]]  # no query sees the last 64 keys
    padding = Blocks.of((torch.arange(200) < torch.tensor([[200], [65]])).view(2, 1, 1, 200), 130)
    assert padding.keys.tolist() == [[[0, 4]], [[0, 2]]]
    assert padding.queries.tolist() == [[[0, 3]] * 4, [[0, 3]] * 2 + [[0, 0]] * 2]


# --- attention


def tensors(batch: int, heads: int, groups: int, queries: int, keys: int, width: int, dtype: Any) -> list[Tensor]:
    """Query, key, value and a gradient of the output, in the memory layout of transformers."""
    g = torch.Generator().manual_seed(queries + width)
    shapes = ((queries, heads), (keys, groups), (keys, groups), (queries, heads))
    created = [torch.randn(batch, n, h, width, generator=g).to(dtype).to(DEVICE) for n, h in shapes]
    return [*(x.transpose(1, 2) for x in created[:3]), created[3]]


def run(attend: Any, query: Tensor, key: Tensor, value: Tensor, gradient: Tensor, *mask: Any) -> list[Tensor]:
    """The output and the gradients of query, key and value."""
    inputs = [x.detach().requires_grad_() for x in (query, key, value)]
    output = attend(*inputs, *mask)
    return [output.detach(), *torch.autograd.grad(output, inputs, gradient)]


def stock(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
    """PyTorch's own attention."""
    return scaled_dot_product_attention(query, key, value, allowed, enable_gqa=True).transpose(1, 2)


CASES = [  # length, width, heads, groups, what is valid, whether positions are dropped, dropout, dtype
    (1, 32, 2, 2, "full", False, 0.0, "float32"),
    (17, 48, 4, 2, "padding", True, 0.0, "float32"),
    (70, 32, 2, 1, "causal", False, 0.3, "float16"),
    (130, 32, 1, 1, "window", True, 0.0, "float16"),
    (64, 32, 2, 1, "full", False, 0.3, "float16"),  # whole tiles
    (128, 32, 1, 1, "causal", True, 0.1, "float16"),
    pytest.param(255, 128, 2, 1, "padding", True, 0.1, "float16", marks=pytest.mark.slow),
    pytest.param(255, 64, 2, 2, "causal", True, 0.1, "float32", marks=pytest.mark.slow),
    *(on_gpu(n, 64, 12, 12, kind, True, 0.1, "bfloat16") for n in (1, 17, 255, 4097) for kind in ("full", "causal")),
    on_gpu(1024, 80, 8, 2, "padding", True, 0.1, "float16"),
    on_gpu(1024, 128, 8, 2, "window", True, 0.0, "bfloat16"),
    on_gpu(512, 64, 4, 4, "padding", False, 0.1, "float32"),
    # The weight of a single key is 1. With dropout, all that its query and it get is the rounding of the output, as in
    # every kernel that saves the output in half precision: in bfloat16 more than the gradients of such long rows.
    *(on_gpu(n, 64, 12, 12, kind, False, 0.1, "bfloat16") for n in (2000, 2048) for kind in ("full", "two keys")),
]


@pytest.mark.parametrize(("length", "width", "heads", "groups", "kind", "drops", "dropout", "dtype"), CASES)
def test_attention_is_as_exact_as_stock(
    length: int, width: int, heads: int, groups: int, kind: str, drops: bool, dropout: float, dtype: str
) -> None:
    batch = 2 if kind == "padding" or HAS_GPU else 1
    given = tensors(batch, heads, groups, length, length, width, getattr(torch, dtype))
    valid = valid_of(kind, batch, length)
    bits = None if valid is None else bits_of_valid(valid.to(DEVICE))
    blocks = None if valid is None else Blocks.of(valid.to(DEVICE), length)
    if drops:
        keep = random_keep(batch, heads, length, length)
        keep[:, :, ::5] = False  # rows that lose everything
        bits = combined(pack(keep.to(DEVICE)), bits)
    draws = Dropout.of(dropout, torch.tensor(-77, dtype=torch.int32, device=DEVICE)) if dropout else None
    scaling = width**-0.5
    actual = run(bitmask_attention.attend, *given, bits, blocks, scaling, draws)
    truth = run(attention_reference.attend, *(x.double() for x in given), bits, scaling, draws)
    allowed = None if bits is None else bits.allowed
    plain = run(stock, *given, allowed), run(stock, *(x.double() for x in given), allowed)
    for name, ours, exact, theirs, exactly in zip("oqkv", actual, truth, *plain, strict=True):
        if exact.norm() == 0:  # with one key the weights are 1, and no gradient goes to query and key
            # What rounding leaves of a sum of `width` products that cancel; how much depends on the processor.
            assert ours.norm() <= width * torch.finfo(ours.dtype).eps * given[-1].norm(), name
            continue
        error, limit = relative_error(ours, exact), 2 * relative_error(theirs, exactly)
        assert error <= max(limit, 4 * torch.finfo(ours.dtype).eps), f"{name}: {error:.1e}, stock {limit / 2:.1e}"


@pytest.mark.parametrize("kind", ["full", "padding"])
def test_large_programs_compute_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from attendrop.kernels.bitmask_attention import triton

    query, key, value, _ = tensors(2, 1, 1, 150, 150, 32, torch.float16)
    valid = valid_of(kind, 2, 150)
    mask = (None, None) if valid is None else (bits_of_valid(valid.to(DEVICE)), Blocks.of(valid.to(DEVICE), 150))
    draws = Dropout.of(0.2, torch.tensor(5, dtype=torch.int32, device=DEVICE))
    small = triton.forward(query, key, value, *mask, 0.2, draws)
    monkeypatch.setattr(triton, "MANY_QUERIES", 1)
    assert triton.sizes("forward", query, has_rows=False)["M"] == 128
    for ours, theirs in zip(triton.forward(query, key, value, *mask, 0.2, draws), small, strict=True):
        if HAS_GPU:
            assert torch.equal(ours, theirs)
        else:  # the interpreter multiplies by a BLAS, whose order of summation depends on the shapes and the processor
            torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=1e-4)


def test_rows_without_a_kept_key_are_uniform_and_rows_without_a_valid_key_are_zero() -> None:
    query, key, value, gradient = tensors(1, 1, 1, 6, 6, 32, torch.float32)
    query[:, :, 1], gradient[:, 2:] = 1e4, 0
    valid = torch.ones(6, 6, dtype=torch.bool, device=DEVICE)
    valid[:, 4:], valid[0] = False, False
    keep = torch.zeros(1, 1, 6, 6, dtype=torch.bool, device=DEVICE)
    bits = combined(pack(keep), bits_of_valid(valid))
    output, *gradients = run(bitmask_attention.attend, query, key, value, gradient, bits, None, 1.0, None)
    assert not output[0, 0].any()
    torch.testing.assert_close(output[0, 1], value[0, :, :4].mean(1))
    assert not gradients[0].any()
    assert not gradients[1].any()
    torch.testing.assert_close(gradients[2][0, 0, :4], gradient[0, 1].expand(4, -1) / 4)
    assert not gradients[2][0, 0, 4:].any()


def test_nan_stays_in_its_row() -> None:
    query, key, value, gradient = tensors(1, 1, 1, 20, 20, 32, torch.float32)
    expected = run(bitmask_attention.attend, query, key, value, gradient, None, None, 0.2)
    query[0, 0, 3] = float("nan")
    actual = run(bitmask_attention.attend, query, key, value, gradient, None, None, 0.2)
    rows = [3]
    for ours, clean in ((actual[0][0, :, 0], expected[0][0, :, 0]), (actual[1][0, 0], expected[1][0, 0])):
        assert ours.isnan().any(1).nonzero().flatten().tolist() == rows
        ours[rows] = clean[rows]
        assert torch.equal(ours, clean)


@pytest.mark.parametrize("p", [0.02, 0.1, 0.5])
def test_dropout_takes_its_share_and_draws_are_independent(p: float) -> None:
    dropout = Dropout.of(p, torch.tensor(-77, dtype=torch.int32))
    dropped = (~attention_reference.kept(dropout, torch.Size((2, 4, 256, 512)))).double() - dropout.p
    deviation = (dropout.p * (1 - dropout.p)) ** 0.5

    def are_independent(*draws: Tensor) -> bool:
        together = reduce(torch.mul, draws)
        return bool(abs(together.sum()) <= 5 * deviation ** len(draws) * together.numel() ** 0.5)

    assert are_independent(dropped)
    for axis, distance in product((2, 3), (1, 2, 7, 8, 9, 16, 32)):
        length = dropped.shape[axis] - distance
        assert are_independent(dropped.narrow(axis, 0, length), dropped.narrow(axis, distance, length))
    for axis in (0, 1):
        assert are_independent(*(dropped.narrow(axis, at, 1) for at in (0, 1)))
    of_pairs = dropped.unflatten(3, (-1, 2, 8)).unflatten(2, (-1, 2, 8))
    four = [of_pairs[:, :, :, row, :, :, column] for row, column in product((0, 1), (0, 1))]  # by one computation
    for number in (2, 3, 4):
        assert all(are_independent(*some) for some in combinations(four, number))


# --- where the kernels are used


def test_cards_with_little_shared_memory_do_not_get_wide_heads_in_float32() -> None:
    def reason(capability: tuple[int, int], shared: int, dtype: torch.dtype, width: int) -> str | None:
        major, minor = capability
        card = SimpleNamespace(major=major, minor=minor, shared_memory_per_multiprocessor=shared * 1024)
        return api._unserved_by(card, dtype, width)

    assert "too little shared memory" in (reason((8, 9), 100, torch.float32, 80) or "")
    assert reason((8, 9), 100, torch.float32, 64) is None
    assert reason((8, 6), 100, torch.bfloat16, 128) is None
    assert reason((8, 0), 164, torch.float32, 128) is None
    assert "below 8.0" in (reason((7, 5), 64, torch.float16, 64) or "")


def test_unsupported_shapes_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.zeros(1, 2, 8, 32)
    assert not bitmask_attention.supports(x, x, x)  # on a CPU, and too short
    with bitmask_attention.override_limits(shortest=8, devices=("cpu",)), caplog.at_level(logging.WARNING):
        assert bitmask_attention.supports(x, x, x)
        for _ in range(2):
            assert not bitmask_attention.supports(*[torch.zeros(1, 2, 8, 24)] * 3)
            assert not bitmask_attention.supports(x.double(), x.double(), x.double())
            assert not bitmask_attention.supports(x, x, torch.zeros(1, 2, 8, 64))
        assert not bitmask_attention.supports(*[x[:, :, :7]] * 3)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3
    assert "a width of 24" in messages[0]
    assert "torch.float64" in messages[1]


@pytest.mark.gpu
def test_attention_is_captured_with_its_draws() -> None:
    query, key, value, _ = tensors(2, 4, 2, 256, 256, 64, torch.bfloat16)
    drop_key = torch.zeros((), dtype=torch.int32, device="cuda")

    def launch() -> Tensor:
        return bitmask_attention.attend(query, key, value, None, None, 0.1, Dropout.of(0.2, drop_key))

    launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = launch()
    for number in (3, 1000):
        drop_key.fill_(number)
        graph.replay()
        assert torch.equal(output, launch())


# --- whole steps


ADDROP = ADDrop(0.5, 0.6, "all", cross_tuning=False)


def tiny(kind: str, attention: str = "sdpa", dropout: float = 0.0) -> Any:
    """A model of one layer whose heads have a width of 32; those of "llama" share a key."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    text = {"vocab_size": zoo.VOCABULARY, "max_position_embeddings": 40, "attn_implementation": "sdpa"}
    model: Any
    if kind == "llama":
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, **text, num_key_value_heads=1, pad_token_id=0))
    else:
        config = hf.BertConfig(
            **sizes, **text, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=dropout
        )
        model = hf.BertForSequenceClassification(config)
    model.config._attn_implementation_internal = attention
    return model.to(DEVICE).train()


def step(model: Any, method: Any, batch: dict[str, Tensor]) -> tuple[Plan, Tensor, Tensor]:
    """The plan, the loss and all gradients of one step."""
    engine = Engine(model, [method], seed=11)
    engine.begin_step(Progress(step=5, total_steps=10))
    with engine.micro_batch({name: x.to(DEVICE) for name, x in batch.items()}) as inputs:
        plan = engine.seams.plan
        loss = engine.loss(model(**inputs))
        loss.backward()
    engine.close()
    return plan, loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize(
    ("kind", "attention", "method", "form"),
    [
        ("llama", "flex_attention", ADDROP, "Bits"),
        ("bert", "flash_attention_2", ScoresDropout(0.4, "element"), "PackedKeep"),
        pytest.param("bert", "sdpa", ADDROP, "SelectedBits", marks=pytest.mark.slow),
    ],
)
def test_step_with_bitmasks_matches_additive_masks(
    kind: str, attention: str, method: Any, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = zoo.make_batch(kind, size=2, length=9)
    with bitmask_attention.override_limits(shortest=1000):
        plan, loss, gradient = step(tiny(kind), method, batch)
    if form == "SelectedBits":
        monkeypatch.setattr(attribution_bits, "STORED_UP_TO", 0)
    with bitmask_attention.override_limits(shortest=1, devices=("cpu", "cuda")):
        model = tiny(kind, attention)
        by_bits = step(model, method, batch)
    assert model.config._attn_implementation == attention
    assert type(by_bits[0].keep[0]).__name__ == form
    valid = batch["attention_mask"].bool().view(2, 1, 1, 9)
    valid = valid & torch.ones(9, 9, dtype=torch.bool).tril() if kind == "llama" else valid
    masks = [as_keep(each.keep[0]).cpu() & valid for each in (plan, by_bits[0])]
    assert torch.equal(*masks)
    assert not torch.equal(masks[0], valid.expand_as(masks[0]))
    torch.testing.assert_close(by_bits[1], loss, rtol=1e-5, atol=1e-6)
    assert relative_error(by_bits[2], gradient.double()) < 1e-4


def test_probe_draws_the_dropout_of_the_pass_that_it_prepares() -> None:
    model, batch = tiny("bert", dropout=0.5), zoo.make_batch("bert", size=1, length=6)
    inputs = {name: x.to(DEVICE) for name, x in batch.items()}
    with bitmask_attention.override_limits(shortest=1, devices=("cpu", "cuda")):
        seams = bind(model)
        everything = torch.ones(1, 1, 1, 6, dtype=torch.bool, device=DEVICE)
        results = []
        for seed, plan in (
            (0, Plan(like_masked=frozenset({0}))),
            (0, Plan(keep={0: everything})),
            (1, Plan(keep={0: everything})),
        ):
            torch.manual_seed(seed)
            with seams.applied(plan), torch.no_grad():
                results.append(model(**inputs).logits)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[1], results[2])


@pytest.mark.gpu
@pytest.mark.parametrize(
    "method", ["addrop:p=0.5,q=0.6,layers=all,cross_tuning=false", "scores_dropout:pattern=element"]
)
def test_captured_steps_with_bitmasks_match_eager(method: str, tmp_path: Path) -> None:
    data = [{name: x[i] for name, x in zoo.make_batch("bert", size=8, length=16).items()} for i in range(8)]
    results = []
    for kind in ("eager", "captured"):
        model = tiny("bert", dropout=0.1)
        args = hf.TrainingArguments(
            str(tmp_path), per_device_train_batch_size=4, max_steps=6, logging_steps=3, save_strategy="no",
            report_to=[], disable_tqdm=True, learning_rate=1e-3,
        )  # fmt: skip
        with bitmask_attention.override_limits(shortest=1):
            RegularizedTrainer(model=model, args=args, train_dataset=data, regularizers=[method], capture=kind).train()
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert relative_error(results[1], results[0].double()) < 1e-4
