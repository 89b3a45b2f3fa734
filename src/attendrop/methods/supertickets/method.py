"""Super tickets: a pretrained model with some heads and feed-forwards masked fine-tunes better than the whole.

    1. fine-tune
    2. I = Σ_x |∂L(x)/∂ξ| for a factor ξ of each head and feed-forward; for heads, divided by the norm over their layer
    3. mask the lowest share of the heads and of the feed-forwards
    4. go back to the pretrained weights and fine-tune the masked model; choose the share on the development set

`SuperTickets` is step 4 for given masks, `find_supertickets` does all four. A masked part is one whose weights are zero
(see tickets.py). They stay zero: they get no gradient, and changes by the optimizer are undone.

Liang et al., "Super Tickets in Pre-Trained Language Models: From Model Compression to Improving Generalization", arXiv
2105.12002.
Differs from the paper in: nothing known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

from torch import Tensor, nn

from ...core.capabilities import ChangesFirstWeights
from ...core.regularizer import Regularizer
from ...core.step import Step
from ...model.seams import Seams
from ...utils.distributed import sum_over_processes
from .._shared.weights import in_graph, reason_against, refuse_sharded, trained_weights
from .tickets import Places, Tickets, importance, masked_places, zero

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


@dataclass
class SuperTickets(ChangesFirstWeights):
    """Trains a model with masked heads and feed-forwards.

    Args:
        tickets: what is masked: `Tickets`, a dictionary with its fields "heads" and "feed_forwards", or the path of a
            file that `Tickets.save` wrote; training without any is refused
    """

    name: ClassVar[str] = "supertickets"
    start_order: ClassVar[int] = 1

    tickets: Tickets = field(default_factory=Tickets)

    def __post_init__(self) -> None:
        given: Any = self.tickets
        if isinstance(given, str):
            self.tickets = Tickets.load(given)
        elif isinstance(given, Mapping) and set(given) <= {"heads", "feed_forwards"}:
            self.tickets = Tickets(**given)
        elif not isinstance(given, Tickets):
            raise ValueError(
                f"SuperTickets.tickets is {given!r}; it must be Tickets, a dictionary with 'heads' and "
                "'feed_forwards', or the path of a file that Tickets.save wrote."
            )
        super().__post_init__()

    def reset(self) -> None:
        self._places = Places()
        self._is_masked = False

    def to_dict(self) -> dict[str, Any]:
        return {"method": self.name, "tickets": self.tickets.to_dict()}

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        if self.tickets == Tickets():
            raise ValueError(
                "SuperTickets.tickets is empty, so nothing would be masked; it must name a file that Tickets.save "
                "wrote, such as supertickets:tickets=tickets.json. attendrop.find_supertickets finds them."
            )
        refuse_sharded("SuperTickets", model)
        self._places = masked_places(self.tickets, model, seams)
        for (name, *_), (parameter, dim, index) in zip(self._places.entries, self._places.of(model), strict=True):
            masked = (
                parameter if dim is None or index is None else parameter.index_select(dim, index.to(parameter.device))
            )
            if not parameter.requires_grad and masked.any():
                raise ValueError(
                    f"SuperTickets.tickets masks weights in {name}, which is frozen; call tickets.apply(model) before "
                    "the adapters are added, so that they are trained on the masked model."
                )

    def refuses(self, other: Regularizer) -> str | None:
        if other.name == "noisytune":
            return "which both set the weights that training starts with; choose one of them."
        return reason_against(self, other)

    def on_step_begin(self, step: Step) -> None:
        if not self._is_masked and self._places.entries:
            refuse_sharded("SuperTickets", step.model)
            with trained_weights(step):
                self._mask(step)
        self._is_masked = True

    def on_gradients(self, step: Step) -> None:
        places = [(p.grad, dim, index) for p, dim, index in self._places_on_device(step) if p.grad is not None]
        in_graph(step, (self.name, "gradients"), [gradient for gradient, _, _ in places], lambda _: _zero_all(places))

    def on_step_end(self, step: Step) -> None:
        places = self._places_on_device(step)
        in_graph(step, (self.name, "weights"), [parameter for parameter, _, _ in places], lambda _: _zero_all(places))

    def _places_on_device(self, step: Step) -> list[tuple[nn.Parameter, int | None, Tensor | None]]:
        """Return the masked places of the model, with indices on its device."""
        device = step.device
        self._places.entries = [
            (name, dim, None if index is None else index.to(device)) for name, dim, index in self._places.entries
        ]
        return self._places.of(step.model)

    def _mask(self, step: Step) -> None:
        for parameter, dim, index in self._places.of(step.model):
            zero(parameter, dim, index)


def _zero_all(places: Sequence[tuple[Tensor, int | None, Tensor | None]]) -> None:
    for x, dim, index in places:
        zero(x, dim, index)


class Search:
    """The result of `find_supertickets`: the best of several runs, and a table of all of them.

    Attributes:
        trainer: the trainer of the best run, with the best weights in its model.
        share: the share that the best run masked.
        tickets: the parts that the best run masked.
        table: one row for each run: its share, the numbers of masked heads and feed-forwards, its score.
        weights: the weights of the best run.
    """

    def __init__(self) -> None:
        self.trainer: Any = None
        self.share = 0.0
        self.tickets = Tickets()
        self.table: list[dict[str, Any]] = []
        self.weights: dict[str, Tensor] = {}
        self._best = -math.inf

    def run(self, trainer: Any, share: float, tickets: Tickets) -> None:
        """Train and evaluate; keep the run if it is the best so far."""
        trainer.train()
        metric = trainer.args.metric_for_best_model
        name = f"eval_{(metric or 'loss').removeprefix('eval_')}"
        value = trainer.evaluate()[name]
        self.table.append(
            {"share": share, "heads": len(tickets.heads), "feed_forwards": len(tickets.feed_forwards), name: value}
        )
        score = value if metric and trainer.args.greater_is_better else -value
        if self.trainer is None or score > self._best:
            self._best, self.trainer, self.share, self.tickets = score, trainer, share, tickets
            self.weights = _copy(trainer.model)


def find_supertickets(
    make_trainer: Callable[[list[Regularizer]], Any],
    shares: Sequence[float] = SHARES,
    per: str = "example",
    batches: int | None = None,
) -> Search:
    """Fine-tune, score heads and feed-forwards, and fine-tune the masked pretrained model, once for each share.

    Every run starts from the weights of the first one, the head included. The best run has the best
    `args.metric_for_best_model` (or the lowest loss) on the development set. The unmasked run, share 0, is one of them.

    Args:
        make_trainer: a function that returns a trainer of the pretrained model with the given regularisers added to its
            own.
        shares: the shares of heads and feed-forwards to mask, each from 0 to 1.
        per: "example": the absolute value is of ∂L/∂ξ of each example; "token": of the part of each token.
        batches: the number of training batches to score with; None: the whole training set.

    Example:
        search = find_supertickets(lambda extra: RegularizedTrainer(model=load(), args=args, train_dataset=train,
                                                                    eval_dataset=dev, regularizers=extra))
        search.trainer.save_model("best")
        search.tickets.save("best/tickets.json")
    """
    search = Search()
    trainer = make_trainer([])
    start = _copy(trainer.model)
    search.run(trainer, 0.0, Tickets())
    scores = importance(trainer.model, _batches(trainer, batches), per)
    for score in (*scores.heads, scores.feed_forwards):
        sum_over_processes(score, trainer.args.world_size)
    tried = {Tickets()}
    for share in shares:
        tickets = scores.lowest(share)
        if tickets not in tried:
            tried.add(tickets)
            trainer = make_trainer([SuperTickets(tickets)])
            trainer.model.load_state_dict(start)
            search.run(trainer, share, tickets)
    search.trainer.model.load_state_dict(search.weights)  # `make_trainer` may use the same model object every time
    return search


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().to("cpu", copy=True) for name, value in model.state_dict().items()}


def _batches(trainer: Any, count: int | None) -> Iterable[Mapping[str, Any]]:
    # Not the training loader, which shuffles, nor the evaluation loader, which the trainer may cache.
    for batch in islice(trainer.get_test_dataloader(trainer.train_dataset), count):
        yield trainer._prepare_inputs(batch)
