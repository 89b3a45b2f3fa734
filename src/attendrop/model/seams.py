"""`bind` and `unbind`: the places in a model that follow a plan.

There are two. The attention function is in attention.py. A block is an instance whose class is replaced by a subclass
of the same name, so that copies, `isinstance` and `state_dict` keys stay the same; so is the last linear layer of its
feed-forward.
"""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from ..kernels.bits_attention import is_possible
from ..random import preserved
from .adapters import ADAPTERS
from .attention import IMPLEMENTATIONS, REPLACED, CallCounter, Record
from .dry_run import Trace, few_tokens, sites_and_blocks, traced
from .modes import evaluating
from .plan import Plan
from .sites import Layers, Site, called_by_name, select, unwrapped
from .token_head import TokenHead
from .validity import Validity

_EMPTY = Plan()

# Our attributes on modules, each a CallCounter.
_ATTENTION, _BLOCK, _FEED_FORWARD = "_attendrop", "_attendrop_block", "_attendrop_feed_forward"
_LINEAR = "_attendrop_linear"
_ATTRIBUTES = (_ATTENTION, _BLOCK, _FEED_FORWARD, _LINEAR)


class Seams:
    """The seams of one bound model. `bind` creates them; `unbind` removes them from the model.

    Attributes:
        sites: the attention calls, in calling order.
        blocks: the names of the blocks, in calling order.
        feed_forwards: for each block, the name of the last linear layer of its feed-forward, or None.
        plan: the plan that every pass follows now.
        records: what the present pass has recorded, by site.
        kept: what edits of the present pass have kept for a method's penalty, by name.
    """

    def __init__(self, model: nn.Module) -> None:
        self.name = type(unwrapped(model)).__name__
        self.sites: list[Site] = []
        self.blocks: list[str] = []
        self.feed_forwards: list[str | None] = []
        self.plan: Plan = _EMPTY
        self.records: dict[int, Record] = {}
        self.kept: dict[str, Tensor] = {}
        self.on_call: Callable[[dict[str, Any]], None] | None = None  # gets the inputs of each call (calls.py)
        self.validity = Validity()  # of the masks of the present pass
        self._configs: list[PretrainedConfig] = []
        self._modules: list[nn.Module] = []
        self._counters: list[CallCounter] = []
        self._counters_of_sites: list[CallCounter] = []
        self._overridden: str | None = None  # a block with a forward of its own on the instance
        self._token_heads: list[TokenHead | None] = []  # the head, once it was looked for

    @classmethod
    def of(cls, model: nn.Module) -> Seams | None:
        """The seams of a bound model (or of a copy of one), or None."""
        for module in model.modules():
            counter = getattr(module, _ATTENTION, None)
            if isinstance(counter, CallCounter):
                return counter.seams
        return None

    def select(self, layers: Layers, owner: str = "layers") -> list[int]:
        """The sites that `layers` selects; `owner` is the name of the setting, for error messages."""
        return select(self.sites, layers, owner)

    def select_blocks(self, layers: Layers, owner: str = "layers") -> list[int]:
        """The blocks that `layers` selects."""
        return sorted({self.sites[site].block for site in self.select(layers, owner)})

    @property
    def lacks_feed_forward(self) -> list[int]:
        """The blocks without a feed-forward that `Plan.ffn` and `Plan.inner` can edit."""
        return [block for block, name in enumerate(self.feed_forwards) if name is None]

    def needs_feed_forward(self, owner: str) -> None:
        """Raises a `ValueError` if a block has no feed-forward that a plan can edit."""
        lacking = self.lacks_feed_forward
        if lacking:
            raise ValueError(
                f"{owner} works on the feed-forward of each block, and {self.blocks[lacking[0]]} of "
                f"{self.name} has none that ends in one linear layer for all tokens (experts and chunks do not)."
            )

    def open_linear(self, model: nn.Module, names: Iterable[str]) -> None:
        """Lets plans edit the inputs and outputs of these linear layers, until `unbind`.

        Args:
            model: the bound model.
            names: the names of the layers in it.
        """
        for name in names:
            self._attach(model.get_submodule(name), _LINEAR, _LinearSeam).name = name

    def token_head(self, model: nn.Module) -> TokenHead | None:
        """The head of the bound model, where it can be called for a part of the tokens. The first call runs the model.

        Args:
            model: the model, with its wrappers.
        """
        if not self._token_heads:
            self._token_heads.append(TokenHead.find(model))
        return self._token_heads[0]

    @contextmanager
    def applied(self, plan: Plan) -> Iterator[None]:
        """Every pass inside follows `plan`. The backward belongs inside: gradient checkpointing runs blocks in it."""
        before, on_call = (self.plan, self.records, self.kept), self.on_call
        self.follow(plan)
        self.on_call = None
        try:
            yield
        finally:
            self._install(*before)
            self.on_call = on_call

    def follow(self, plan: Plan) -> dict[int, Record]:
        """From now on every pass follows `plan`, until another one is applied; returns where it will record."""
        if plan.ffn or plan.inner:
            self.needs_feed_forward("Plan.ffn")
        if plan.changes_blocks and self._overridden is not None:
            raise ValueError(
                f"{self._overridden} of {self.name} has a forward of its own on the instance (assigned by hand, or by "
                "accelerate's device_map), which hides the class's; blocks cannot be skipped or edited there."
            )
        self._install(plan, {}, {})
        return self.records

    def _install(self, plan: Plan, records: dict[int, Record], kept: dict[str, Tensor]) -> None:
        self.plan, self.records, self.kept, self.validity = plan, records, kept, Validity()
        for counter in self._counters:
            counter.calls = 0

    def count_skipped(self, block: int) -> None:
        """Counts the attention calls of a block that does not run, for modules that are called many times."""
        for site, counter in zip(self.sites, self._counters_of_sites, strict=True):
            if site.block == block:
                counter.advance()

    def _attach(
        self, module: Any, attribute: str, seam: type | None = None, counter: CallCounter | None = None
    ) -> CallCounter:
        """Attaches a counter to the module, where it has none yet, and puts `seam` before its class."""
        if attribute not in module.__dict__:
            if counter is None:
                counter = CallCounter(self)
                self._counters.append(counter)
            if seam is not None and not isinstance(module, seam):
                # FSDP2 keeps the seam's class below its own: then the module is an instance already.
                module.__class__ = _with_seam(type(module), seam)
            setattr(module, attribute, counter)
            self._modules.append(module)
        return module.__dict__[attribute]

    def unbind(self) -> None:
        """Removes the seams: the model is as it was before `bind`."""
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
        self._install(_EMPTY, {}, {})


class _Seam:
    """What the subclasses of blocks, feed-forwards and adapted attention modules share."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # As nn.Module copies itself. It is written out because pickling, which would do it, is refused.
        duplicate = type(self).__new__(type(self))
        memo[id(self)] = duplicate
        duplicate.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return duplicate

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise pickle.PicklingError(
            "the model is bound by attendrop and cannot be pickled; save model.state_dict(), use save_pretrained(), or "
            "call unbind() on its seams (engine.close()) first."
        )


class _BlockSeam(_Seam):
    """Comes before the class of a block: skips it or edits its hidden states, as the plan says."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        run = super().forward  # type: ignore[misc]
        counter = getattr(self, _BLOCK, None)
        if counter is None or not counter.seams.plan:
            return run(*args, **kwargs)
        plan: Plan = counter.seams.plan
        block = counter.current
        if block in plan.instead:
            counter.seams.count_skipped(counter.advance())
            return plan.instead[block]()
        if block == 0 and -1 in plan.edits:
            args, kwargs = _with_hidden_states(args, kwargs, _edited(plan, -1, _hidden_states(args, kwargs)))
        result = run(*args, **kwargs)
        counter.advance()
        if block not in plan.skip and block not in plan.skip_where and block not in plan.edits:
            return result
        after = result if isinstance(result, Tensor) else result[0]
        is_skipped = _is_skipped(plan, block, after.device)
        if is_skipped is not None:
            # The block has run and its result is dropped, so that the autograd graph is the same in every step, which
            # data-parallel and sharded training rely on.
            after = torch.where(is_skipped, _hidden_states(args, kwargs), after)
        after = _edited(plan, block, after)
        return after if isinstance(result, Tensor) else (after, *result[1:])


def _is_skipped(plan: Plan, block: int, device: torch.device) -> Tensor | None:
    """Whether the block is skipped, bool of no dimensions; None where the plan says nothing about it."""
    if block in plan.skip:
        return torch.ones((), dtype=torch.bool, device=device)
    return plan.skip_where.get(block)


def _hidden_states(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0] if args else kwargs["hidden_states"]


def _with_hidden_states(
    args: tuple[Any, ...], kwargs: dict[str, Any], hidden: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})


def _edited(plan: Plan, block: int, hidden: Tensor) -> Tensor:
    for edit in plan.edits.get(block, ()):
        hidden = edit(hidden)
    return hidden


class _FeedForwardSeam(_Seam):
    """Comes before the class of a feed-forward's last linear layer: edits its input and its output."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        run = super().forward  # type: ignore[misc]
        counter = getattr(self, _FEED_FORWARD, None)
        if counter is None or not (counter.seams.plan.ffn or counter.seams.plan.inner):
            return run(x, *args, **kwargs)
        plan: Plan = counter.seams.plan
        for edit in plan.inner.get(counter.current, ()):
            x = edit(x)
        x = run(x, *args, **kwargs)
        for edit in plan.ffn.get(counter.current, ()):
            x = edit(x)
        return x


class _LinearSeam(_Seam):
    """Comes before the class of a linear layer that a method has opened: edits its input and its output."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        run = super().forward  # type: ignore[misc]
        counter = getattr(self, _LINEAR, None)
        plan: Plan = _EMPTY if counter is None else counter.seams.plan
        name = "" if counter is None else counter.name
        for edit in plan.linear_inputs.get(name, ()):
            x = edit(x)
        x = run(x, *args, **kwargs)
        for edit in plan.linear_outputs.get(name, ()):
            x = edit(x)
        return x


_subclasses: dict[tuple[type, type], type] = {}


def _with_seam(cls: Any, seam: Any) -> type:
    """A subclass of the same name, as FSDP2 creates: one for each class, so that isinstance holds among blocks."""
    if "_attendrop_original" in vars(cls) and (cls.__bases__[-1], cls.__bases__[0]) not in _subclasses:
        raise ValueError(f"{cls.__name__} has an attribute '_attendrop_original' of its own; rename it.")
    if (cls, seam) not in _subclasses:
        body = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "_attendrop_original": cls}
        _subclasses[cls, seam] = type(cls.__name__, (seam, cls), body)
    return _subclasses[cls, seam]


def bind(model: Any, batch: Mapping[str, Any] | None = None) -> Seams:
    """Adds the seams to `model`. It computes what it did before, until a plan is applied.

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
                "regularised; it would need an adapter as MPNet and DeBERTa-v2 have in attendrop/model/adapters.py."
            )
        _attach_all(model, seams, trace)
    except BaseException:
        seams.unbind()
        raise
    return seams


@contextmanager
def bound(model: Any) -> Iterator[Seams]:
    """The seams of a model: its own where it is bound already, otherwise seams that are removed at the end."""
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
    for site, call in zip(seams.sites, trace.calls, strict=True):
        counter = seams._attach(call.module, _ATTENTION)
        counter.numbers.append(site.index)
        seams._counters_of_sites.append(counter)
    for index, block in enumerate(blocks):
        module = model.get_submodule(block.name)
        if "forward" in vars(module):
            seams._overridden = block.name
        seams.blocks.append(block.name)
        counter = seams._attach(module, _BLOCK, _BlockSeam)
        counter.numbers.append(index)
        seams.feed_forwards.append(block.feed_forward)
        if block.feed_forward is not None:
            # With the counter of the block: the layer is called while the block runs.
            seams._attach(model.get_submodule(block.feed_forward), _FEED_FORWARD, _FeedForwardSeam, counter)


# How many bound models share a configuration object, by its id. One that is not here is used by one model at most.
_shared_configs: dict[int, int] = {}
_lock = threading.Lock()
_ORIGINALS = {ours: own for own, ours in (IMPLEMENTATIONS | REPLACED).items()}


def _use_config(config: PretrainedConfig, name: str, device: torch.device) -> None:
    """Switches a configuration to our attention function, or counts one more model that shares it."""
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
    """Restores the configuration's own implementation when the last model that shares it is unbound."""
    with _lock:
        count = _shared_configs.pop(id(config), 1) - 1
        if count > 0:
            _shared_configs[id(config)] = count
        else:
            config._attn_implementation_internal = _ORIGINALS[config._attn_implementation]


def _replace_attention(model: Any, seams: Seams) -> None:
    """Switches the configurations of the model to our attention function, and adds adapters where they are needed."""
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
            module.__class__ = _with_seam(type(module), adapter)
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
            called_by_name(model)(**inputs)
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
    """A pass without a backward leaves FSDP2's root gathered, and an optimizer created now would hold those tensors."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        from torch.distributed.fsdp import FSDPModule

        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
