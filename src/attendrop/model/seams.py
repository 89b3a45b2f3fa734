"""`bind` and `unbind`: the places in a model that follow a plan.

There are two kinds: the attention function (attention.py); and blocks, word embeddings, the last linear layers of
feed-forwards, and linear layers that a method asks for, whose class is replaced by a subclass (subclasses.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from ..kernels.bitmask_attention import is_possible
from ..random import preserved
from .attention import IMPLEMENTATIONS, REPLACED, CallCounter, Record
from .attention_adapters import ADAPTERS
from .dry_run import Trace, few_tokens, shapes_of, sites_and_blocks, traced, word_embeddings
from .modes import evaluating
from .plan import Plan
from .sites import Layers, Site, called_by_name, select, unwrapped
from .subclasses import (
    ATTENTION,
    BLOCK,
    EMPTY,
    FEED_FORWARD,
    LINEAR,
    WORDS,
    BlockSeam,
    FeedForwardSeam,
    LinearSeam,
    WordsSeam,
    with_seam,
)
from .token_head import TokenHead
from .validity import Validity

_ATTRIBUTES = (ATTENTION, BLOCK, FEED_FORWARD, LINEAR, WORDS)


class Seams:
    """The seams of one bound model. `bind` creates them; `unbind` removes them from the model.

    Attributes:
        sites: the attention calls, in calling order.
        blocks: the names of the blocks, in calling order.
        words: the name of the word embeddings that `Plan.words` edits; None: it edits the input of the first block.
        feed_forwards: for each block, the name of the last linear layer of its feed-forward, or None.
        plan: the plan that every pass follows now.
        records: the tensors recorded in the current pass, by site.
        kept: what edits of the current pass have kept for a method's penalty, by name.
    """

    def __init__(self, model: nn.Module) -> None:
        self.name = type(unwrapped(model)).__name__
        self.sites: list[Site] = []
        self.blocks: list[str] = []
        self.words: str | None = None
        self.outputs: dict[str, tuple[int, ...]] = {}  # of the dry run, by name
        self.feed_forwards: list[str | None] = []
        self.plan: Plan = EMPTY
        self.records: dict[int, Record] = {}
        self.kept: dict[str, Tensor] = {}
        self.on_call: Callable[[dict[str, Any]], None] | None = None  # gets the inputs of each call (calls.py)
        self.validity = Validity()  # of the masks of the current pass
        self._configs: list[PretrainedConfig] = []
        self._modules: list[nn.Module] = []
        self._counters: list[CallCounter] = []
        self._counters_of_sites: list[CallCounter] = []
        # a block, or the word embeddings, with a forward of its own on the instance
        self._overridden: str | None = None
        self._overridden_words: str | None = None
        self._token_heads: list[TokenHead | None] = []  # the head, once it was looked for

    @classmethod
    def of(cls, model: nn.Module) -> Seams | None:
        """Return the seams of a bound model (or of a copy of one), or None."""
        for module in model.modules():
            counter = getattr(module, ATTENTION, None)
            if isinstance(counter, CallCounter):
                return counter.seams
        return None

    def select(self, layers: Layers, owner: str = "layers") -> list[int]:
        """Return the sites that `layers` selects; `owner` is the name of the setting, for error messages."""
        return select(self.sites, layers, owner)

    def select_blocks(self, layers: Layers, owner: str = "layers") -> list[int]:
        """Return the blocks that `layers` selects."""
        return sorted({self.sites[site].block for site in self.select(layers, owner)})

    @property
    def lacks_feed_forward(self) -> list[int]:
        """The blocks without a feed-forward that `Plan.ffn` and `Plan.inner` can edit."""
        return [block for block, name in enumerate(self.feed_forwards) if name is None]

    def needs_feed_forward(self, owner: str) -> None:
        """Raise a `ValueError` if a block has no feed-forward that a plan can edit."""
        lacking = self.lacks_feed_forward
        if lacking:
            raise ValueError(
                f"{owner} works on the feed-forward of each block, and {self.blocks[lacking[0]]} of "
                f"{self.name} has none that ends in one linear layer for all tokens (experts and chunks do not)."
            )

    def open_linear(self, model: nn.Module, names: Iterable[str]) -> None:
        """Let plans edit the inputs and outputs of these linear layers, until `unbind`.

        Args:
            model: the bound model.
            names: the names of the layers in it.
        """
        for name in names:
            self._attach(model.get_submodule(name), LINEAR, LinearSeam).name = name

    def token_head(self, model: nn.Module) -> TokenHead | None:
        """Return the head of the bound model, where it can be called for a part of the tokens.

        The first call runs the model.

        Args:
            model: the model, with its wrappers.
        """
        if not self._token_heads:
            self._token_heads.append(TokenHead.find(model))
        return self._token_heads[0]

    @contextmanager
    def applied(self, plan: Plan) -> Iterator[None]:
        """Apply `plan` to every pass in the block. The backward belongs inside: checkpointing reruns modules in it."""
        before, on_call = (self.plan, self.records, self.kept), self.on_call
        self.follow(plan)
        self.on_call = None
        try:
            yield
        finally:
            self._install(*before)
            self.on_call = on_call

    def follow(self, plan: Plan) -> dict[int, Record]:
        """Apply `plan` to every pass from now on, until another one is applied; return where it will record."""
        if plan.ffn or plan.inner:
            self.needs_feed_forward("Plan.ffn")
        overridden = self._overridden if plan.changes_blocks else None
        if plan.words:
            overridden = overridden or self._overridden_words
        if overridden is not None:
            raise ValueError(
                f"{overridden} of {self.name} has a forward of its own on the instance (assigned by hand, or by "
                "accelerate's device_map), which hides the class's; it cannot be skipped or edited there."
            )
        self._install(plan, {}, {})
        return self.records

    def _install(self, plan: Plan, records: dict[int, Record], kept: dict[str, Tensor]) -> None:
        self.plan, self.records, self.kept, self.validity = plan, records, kept, Validity()
        for counter in self._counters:
            counter.calls = 0

    def count_skipped(self, block: int) -> None:
        """Count the attention calls of a block that does not run, for modules that are called many times."""
        for site, counter in zip(self.sites, self._counters_of_sites, strict=True):
            if site.block == block:
                counter.advance()

    def _attach(
        self, module: Any, attribute: str, seam: type | None = None, counter: CallCounter | None = None
    ) -> CallCounter:
        """Attach a counter to the module, where it has none yet, and put `seam` before its class."""
        if attribute not in module.__dict__:
            if counter is None:
                counter = CallCounter(self)
                self._counters.append(counter)
            if seam is not None and not isinstance(module, seam):
                # FSDP2 keeps the seam's class below its own: then the module is an instance already.
                module.__class__ = with_seam(type(module), seam)
            setattr(module, attribute, counter)
            self._modules.append(module)
        return module.__dict__[attribute]

    def unbind(self) -> None:
        """Remove the seams: the model is as it was before `bind`."""
        for module in self._modules:
            for attribute in _ATTRIBUTES:
                if isinstance(module.__dict__.get(attribute), CallCounter):
                    delattr(module, attribute)
            original = getattr(type(module), "_attendrop_original", None)
            if original is not None and type(module).__bases__[-1] is original:
                module.__class__ = original
        for config in self._configs:
            _release_config(config)
        self._modules, self._counters, self._counters_of_sites, self._configs = [], [], [], []
        self._token_heads = []
        self._install(EMPTY, {}, {})


def bind(model: Any, batch: Mapping[str, Any] | None = None) -> Seams:
    """Add the seams to `model`. Its outputs stay the same until a plan is applied.

    Args:
        model: a transformers model; PEFT, DDP and torch.compile may wrap it.
        batch: an example for the dry run that finds the attention calls; text and image models need none.

    Example:
        seams = bind(model)
        with seams.applied(Plan(uniform=frozenset({0}))):  # the first layer's attention is uniform
            outputs = model(**inputs)
        seams.unbind()
    """
    if Seams.of(model) is not None:
        raise ValueError(f"{type(unwrapped(model)).__name__} is bound already; call unbind() on its seams first.")
    seams = Seams(model)
    try:
        _replace_attention(model, seams)
        trace = _run_dry(model, batch)
        if not trace.calls:
            raise ValueError(
                f"{seams.name} does not call transformers' attention interface, so its attention cannot be "
                "regularised; it would need an adapter, as MPNet and DeBERTa-v2 have in "
                "attendrop/model/attention_adapters.py."
            )
        _attach_all(model, seams, trace)
    except BaseException:
        seams.unbind()
        raise
    return seams


@contextmanager
def bound(model: Any) -> Iterator[Seams]:
    """Yield the seams of a model: its own where it is bound already, otherwise seams that are removed at the end.

    A model has one plan at a time, so other threads wait at their `bound` of the same model until this one ends.
    """
    with _lock:
        turn = _turns.setdefault(unwrapped(model), threading.RLock())
    with turn:
        seams = Seams.of(model)
        if seams is not None:
            yield seams
            return
        seams = bind(model)
        try:
            yield seams
        finally:
            seams.unbind()


def _attach_all(model: Any, seams: Seams, trace: Trace) -> None:
    seams.sites, blocks = sites_and_blocks(trace, model)
    seams.outputs = trace.outputs
    for site, call in zip(seams.sites, trace.calls, strict=True):
        counter = seams._attach(call.module, ATTENTION)
        counter.numbers.append(site.index)
        seams._counters_of_sites.append(counter)
    for index, block in enumerate(blocks):
        module = model.get_submodule(block.name)
        if "forward" in vars(module):
            seams._overridden = block.name
        seams.blocks.append(block.name)
        counter = seams._attach(module, BLOCK, BlockSeam)
        counter.numbers.append(index)
        seams.feed_forwards.append(block.feed_forward)
        if block.feed_forward is not None:
            # With the counter of the block: the layer is called while the block runs.
            seams._attach(model.get_submodule(block.feed_forward), FEED_FORWARD, FeedForwardSeam, counter)
    _attach_words(model, seams, trace)


def _attach_words(model: Any, seams: Seams, trace: Trace) -> None:
    module, calls = word_embeddings(trace, model)
    if module is None:
        seams._overridden_words = seams._overridden
        return
    seams.words = next(name for name, other in model.named_modules() if other is module)
    if "forward" in vars(module):
        seams._overridden_words = seams.words
    seams._attach(module, WORDS, WordsSeam).numbers.extend(range(calls))


# How many bound models share a configuration object, by its id. One that is not here is used by one model at most.
_shared_configs: dict[int, int] = {}
_lock = threading.Lock()
_turns: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()  # a model -> the lock of who uses its seams
_ORIGINALS = {ours: own for own, ours in (IMPLEMENTATIONS | REPLACED).items()}


def _use_config(config: PretrainedConfig, name: str, device: torch.device) -> None:
    """Switch a configuration to our attention function, or count one more model that shares it."""
    names = IMPLEMENTATIONS | (REPLACED if is_possible(device) else {})
    with _lock:
        implementation = config._attn_implementation
        if implementation in _ORIGINALS:
            _shared_configs[id(config)] = _shared_configs.get(id(config), 1) + 1
        elif implementation in names:
            _shared_configs.pop(id(config), None)
            config._attn_implementation_internal = names[implementation]
        else:
            raise ValueError(
                f"attn_implementation of {name} is {implementation!r}, whose kernels take no mask for each head and "
                "position; load the model with attn_implementation='sdpa' (or 'eager')."
            )


def _release_config(config: PretrainedConfig) -> None:
    """Restore the configuration's own implementation when the last model that shares it is unbound."""
    with _lock:
        count = _shared_configs.pop(id(config), 1) - 1
        if count > 0:
            _shared_configs[id(config)] = count
        else:
            config._attn_implementation_internal = _ORIGINALS[config._attn_implementation]


def _replace_attention(model: Any, seams: Seams) -> None:
    """Switch the configurations of the model to our attention function, and add adapters where they are needed."""
    seen: set[int] = set()
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    for module in model.modules():
        for attribute in _ATTRIBUTES:
            if hasattr(module, attribute):
                raise ValueError(
                    f"{type(module).__name__} of {seams.name} has an attribute {attribute!r} of its own, which "
                    "attendrop would overwrite; rename it."
                )
        config = getattr(module, "config", None)
        if isinstance(config, PretrainedConfig) and id(config) not in seen and config._attn_implementation is not None:
            seen.add(id(config))
            _use_config(config, seams.name, device)
            seams._configs.append(config)
        adapter = ADAPTERS.get((type(module).__module__, type(module).__qualname__))
        if adapter is not None:
            module.__class__ = with_seam(type(module), adapter)
            seams._modules.append(module)
    if not seams._configs:
        raise ValueError(
            f"{seams.name} is not a transformers model: it has no config with an attention implementation."
        )


def _run_dry(model: nn.Module, batch: Mapping[str, Any] | None) -> Trace:
    inner = unwrapped(model)
    inputs = dict(batch) if batch is not None else few_tokens(inner, inner.config)
    device = next(model.parameters()).device
    try:
        with preserved(device), evaluating(model), torch.no_grad(), traced(model) as trace:
            sound = inputs.get("input_values")
            trace.samples = int(sound.shape[-1]) if sound is not None and sound.dim() == 2 else None
            trace.outputs = shapes_of(called_by_name(model)(**inputs))
    except Exception as error:
        if batch is not None:
            raise
        raise ValueError(
            f"{type(inner).__name__} did not run on {sorted(inputs)} ({type(error).__name__}: {error}); pass an "
            "example batch as bind(model, batch=...)."
        ) from error
    finally:
        _reshard(model)
    return trace


def _reshard(model: nn.Module) -> None:
    """Free FSDP2's gathered root after a pass without a backward; an optimizer created now would hold those tensors."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        from torch.distributed.fsdp import FSDPModule

        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
