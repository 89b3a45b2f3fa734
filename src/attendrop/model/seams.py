"""bind / unbind: the places in a model that read the plan.

S1, the attention function, is in attention.py. S2, the block, is a subclass of the same name swapped in for the
instance's class, so that copies, `isinstance` and `state_dict` keys all hold; the last linear map of its feed-forward
is swapped in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from ..random import preserved
from .adapters import ADAPTERS
from .attention import IMPLEMENTATIONS, Handle, Record, Validity
from .modes import evaluating
from .plan import Plan
from .sites import Layers, Site, Watch, few_tokens, number, select, unwrapped, watching

_EMPTY = Plan()


class Seams:
    """The seams of one bound model. `bind` makes it; `unbind` leaves nothing of it on the model."""

    def __init__(self, model: nn.Module) -> None:
        self.name = type(unwrapped(model)).__name__
        self.sites: list[Site] = []
        self.blocks: list[str] = []  # the names of the blocks, in calling order
        self.feed_forwards: list[str | None] = []  # of each block, the last linear map of its feed-forward
        self.plan: Plan = _EMPTY
        self.records: dict[int, Record] = {}
        self.validity = Validity()  # of the masks of the pass under way
        self._configs: list[tuple[PretrainedConfig, str]] = []
        self._modules: list[nn.Module] = []
        self._handles: list[Handle] = []
        self._handles_of_sites: list[Handle] = []

    @classmethod
    def of(cls, model: nn.Module) -> Seams | None:
        """The seams of a bound model (or of a copy of one), or None."""
        for module in model.modules():
            handle = getattr(module, "_attendrop", None)
            if handle is not None:
                return handle.seams
        return None

    def select(self, layers: Layers, owner: str = "layers") -> list[int]:
        """The sites that `layers` names."""
        return select(self.sites, layers, owner)

    def select_blocks(self, layers: Layers, owner: str = "layers") -> list[int]:
        """The blocks that `layers` names."""
        return sorted({self.sites[site].block for site in self.select(layers, owner)})

    @property
    def lacks_feed_forward(self) -> list[int]:
        """The blocks that have no feed-forward which `Plan.ffn` and `Plan.inner` can reach."""
        return [block for block, name in enumerate(self.feed_forwards) if name is None]

    def needs_feed_forward(self, owner: str) -> None:
        """Raises where one is lacking."""
        lacking = self.lacks_feed_forward
        if lacking:
            raise ValueError(
                f"{owner} works on the feed-forward of each block, and {self.blocks[lacking[0]]} of "
                f"{self.name} has none that ends in one linear map of all tokens (experts and chunks do not)."
            )

    @contextmanager
    def applied(self, plan: Plan) -> Iterator[None]:
        """Every pass inside follows `plan`, and so does the backward: gradient checkpointing replays blocks in it."""
        if plan.ffn or plan.inner:
            self.needs_feed_forward("Plan.ffn")
        before = self.plan, self.records
        self._install(plan, {})
        try:
            yield
        finally:
            self._install(*before)

    def _install(self, plan: Plan, records: dict[int, Record]) -> None:
        self.plan, self.records, self.validity = plan, records, Validity()
        for handle in self._handles:
            handle.calls = 0

    def _pass_by(self, block: int) -> None:
        """Attention modules that are called many times count the calls of a block that does not run."""
        for site, handle in zip(self.sites, self._handles_of_sites, strict=True):
            if site.block == block:
                handle.next()

    def _hang(self, module: Any, attribute: str, seam: type | None = None, handle: Handle | None = None) -> Handle:
        """Gives the module a handle, where it has none yet, and its class the seam."""
        if attribute not in module.__dict__:
            if handle is None:
                handle = Handle(self)
                self._handles.append(handle)
            if seam is not None and not isinstance(module, seam):
                # an instance already: FSDP2 keeps the seam's class below its own, where it does nothing
                module.__class__ = _with_seam(type(module), seam)
            setattr(module, attribute, handle)
            self._modules.append(module)
        return module.__dict__[attribute]

    def unbind(self) -> None:
        """Gives the model back as it was."""
        for module in self._modules:
            for attribute in ("_attendrop", "_attendrop_block", "_attendrop_feed_forward"):
                if attribute in module.__dict__:
                    delattr(module, attribute)
            original = getattr(type(module), "_attendrop_original", None)
            if original is not None and type(module).__bases__[-1] is original:
                module.__class__ = original
        for config, implementation in self._configs:
            config._attn_implementation_internal = implementation
        self._modules, self._handles, self._handles_of_sites, self._configs = [], [], [], []
        self.plan, self.records, self.validity = _EMPTY, {}, Validity()


class _BlockSeam:
    """Mixed into a block's class: skips it or edits its hidden states, as the plan says."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        run = super().forward  # type: ignore[misc]
        handle = getattr(self, "_attendrop_block", None)
        if handle is None or not handle.seams.plan:
            return run(*args, **kwargs)
        plan: Plan = handle.seams.plan
        block = handle.current
        if block in plan.instead:
            handle.seams._pass_by(handle.next())
            return plan.instead[block]()
        if block == 0 and -1 in plan.edits:
            hidden = args[0] if args else kwargs["hidden_states"]
            for edit in plan.edits[-1]:
                hidden = edit(hidden)
            if args:
                args = (hidden, *args[1:])
            else:
                kwargs["hidden_states"] = hidden
        result = run(*args, **kwargs)
        handle.next()
        if block not in plan.skip and block not in plan.edits:
            return result
        after = result if isinstance(result, Tensor) else result[0]
        if block in plan.skip:
            # The block runs and its result is not taken: the autograd graph stays the same from step to step, which
            # data-parallel and sharded training rely on.
            before = args[0] if args else kwargs["hidden_states"]
            after = torch.where(torch.ones((), dtype=torch.bool, device=after.device), before, after)
        for edit in plan.edits.get(block, ()):
            after = edit(after)
        return after if isinstance(result, Tensor) else (after, *result[1:])


class _FeedForwardSeam:
    """Mixed into the class of a feed-forward's last linear map: edits what it takes and what it gives."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        run = super().forward  # type: ignore[misc]
        handle = getattr(self, "_attendrop_feed_forward", None)
        if handle is None or not (handle.seams.plan.ffn or handle.seams.plan.inner):
            return run(x, *args, **kwargs)
        plan: Plan = handle.seams.plan
        for edit in plan.inner.get(handle.current, ()):
            x = edit(x)
        x = run(x, *args, **kwargs)
        for edit in plan.ffn.get(handle.current, ()):
            x = edit(x)
        return x


_subclasses: dict[tuple[type, type], type] = {}


def _with_seam(cls: Any, seam: Any) -> type:
    """A subclass of the same name, as FSDP2 makes: one for each class, so that isinstance checks hold among blocks."""
    if (cls, seam) not in _subclasses:
        body = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "_attendrop_original": cls}
        _subclasses[cls, seam] = type(cls.__name__, (seam, cls), body)
    return _subclasses[cls, seam]


def bind(model: Any, batch: Mapping[str, Any] | None = None) -> Seams:
    """Puts the seams into `model`: afterwards it computes what it did before, until a plan is applied.

    `batch` is an example for the dry run that finds the attention calls; text and image models need none.
    """
    if Seams.of(model) is not None:
        raise ValueError(f"{type(unwrapped(model)).__name__} is bound already; call unbind() on its seams first.")
    seams = Seams(model)
    try:
        _swap_attention(model, seams)
        watch = _run_dry(model, batch)
        if not watch.calls:
            raise ValueError(
                f"{seams.name} makes no call of transformers' attention interface, so its attention cannot be "
                "regularised; it would need an adapter as MPNet and DeBERTa-v2 have in attendrop/adapters.py."
            )
        seams.sites, blocks = number(watch, model)
        for site, call in zip(seams.sites, watch.calls, strict=True):
            handle = seams._hang(call.module, "_attendrop")
            handle.numbers.append(site.index)
            seams._handles_of_sites.append(handle)
        for index, block in enumerate(blocks):
            seams.blocks.append(block.name)
            handle = seams._hang(model.get_submodule(block.name), "_attendrop_block", _BlockSeam)
            handle.numbers.append(index)
            seams.feed_forwards.append(block.feed_forward)
            if block.feed_forward is not None:
                # with the block's own handle: the map is called while it is the block's turn
                last = model.get_submodule(block.feed_forward)
                seams._hang(last, "_attendrop_feed_forward", _FeedForwardSeam, handle)
    except BaseException:
        seams.unbind()
        raise
    return seams


def _swap_attention(model: Any, seams: Seams) -> None:
    seen: set[int] = set()
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, PretrainedConfig) and id(config) not in seen:
            seen.add(id(config))
            implementation = config._attn_implementation
            if implementation in IMPLEMENTATIONS:
                seams._configs.append((config, implementation))
            elif implementation is not None:
                raise ValueError(
                    f"attn_implementation of {seams.name} is {implementation!r}, whose kernels take no mask for each "
                    "head and position; load the model with attn_implementation='sdpa' (or 'eager')."
                )
        adapter = ADAPTERS.get((type(module).__module__, type(module).__qualname__))
        if adapter is not None:
            module.__class__ = _with_seam(type(module), adapter)
            seams._modules.append(module)
    if not seams._configs:
        raise ValueError(
            f"{seams.name} is not a transformers model: it has no config with an attention implementation."
        )
    for config, implementation in seams._configs:
        config._attn_implementation_internal = IMPLEMENTATIONS[implementation]


def _run_dry(model: nn.Module, batch: Mapping[str, Any] | None) -> Watch:
    inner = unwrapped(model)
    inputs = dict(batch) if batch is not None else few_tokens(inner, inner.config)
    device = next(model.parameters()).device
    try:
        with preserved(device), evaluating(model), torch.no_grad(), watching(model) as watch:
            model(**inputs)
    except Exception as error:
        if batch is not None:
            raise
        raise ValueError(
            f"{type(inner).__name__} did not run on {sorted(inputs)} ({type(error).__name__}: {error}); pass an "
            "example batch as bind(model, batch=...)."
        ) from error
    finally:
        _reshard(model)
    return watch


def _reshard(model: nn.Module) -> None:
    """A pass without a backward leaves FSDP2's root gathered, and an optimizer made now would take those tensors."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        from torch.distributed.fsdp import FSDPModule

        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
