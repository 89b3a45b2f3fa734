"""The tables and figures of AD-DROP, arXiv 2210.05883, without its sketches (Figures 1 and 3) and Tables 10 and 11.

The documents of this project say what Figures 2, 4, 7, 8 and 9 show; the content of the others is our reading
(`is_reading`). One score of the paper is known, so most of its columns are empty.
"""

from __future__ import annotations

from .entry import ADDROP, Claim, Entry, Number, Row, Small

_GLUE = (
    "glue/sst2", "glue/mnli", "glue/qnli", "glue/qqp", "glue/cola", "glue/stsb", "glue/mrpc", "glue/rte",
)  # fmt: skip
_SMALL_GLUE = ("glue/cola", "glue/stsb", "glue/mrpc", "glue/rte")
_BOTH = ("roberta-base", "bert-base-uncased")
_TABLE_11 = (
    "Learning rate, batch size, length, p, q and layers by task from Table 11 and section 4 (BERT-base's for BERT "
    "models, RoBERTa-base's for all others), epochs, patience and optimizer from the authors' code, for all rows alike."
)
_OWN = "AD-DROP"
_PLAIN = Row("fine-tuning")
_ADDROP = Row(_OWN, "addrop:{paper}")
_ABSTRACT = "abstract"
_IMPROVES = Claim("AD-DROP yields consistent improvements over fine-tuning", _ABSTRACT, _OWN, "fine-tuning")
_GRID = tuple(f"p=0.{p},q=0.{q}" for p in range(1, 10) for q in range(1, 10))
_SMALL_GRID = ("p=0.2,q=0.2", "p=0.2,q=0.8", "p=0.8,q=0.2", "p=0.8,q=0.8")
_STEADY = Claim(
    "alternating with fine-tuning (cross-tuning) improves the stability of training",
    "section 1",
    "with cross-tuning",
    "without cross-tuning",
    sign=-1,
    of_spread=True,
)


def _grid_figure(number: int, model: str) -> Entry:
    return Entry(
        paper=ADDROP,
        item=f"figure-{number}",
        title=f"Scores over the grid of p and q, with and without cross-tuning ({model} in the paper)",
        rows=(
            Row("without cross-tuning", "addrop:{point},layers={layers},cross_tuning=false"),
            Row("with cross-tuning", "addrop:{point},layers={layers},end_on=either"),
        ),
        tasks=_SMALL_GLUE,
        points=_GRID,
        drawing="boxes",
        is_reading=False,
        setting=f"{_TABLE_11} p and q from 0.1 to 0.9 in steps of 0.1; the tasks and one seed for each are our choice.",
        models=(model,),
        seeds=1,
        claims=(_STEADY,),
        small=Small(tasks=("glue/rte",), points=_SMALL_GRID, seeds=1),
    )


def _layers_figure(number: int, model: str) -> Entry:
    return Entry(
        paper=ADDROP,
        item=f"figure-{number}",
        title=f"AD-DROP in one layer at a time ({model} in the paper)",
        rows=(_PLAIN, Row("layer {layer}", "addrop:p={p},q={q},layers={layer},end_on=either")),
        tasks=_SMALL_GLUE,
        over_layers=True,
        drawing="map",
        axis="layer",
        setting=f"{_TABLE_11} The tasks are our choice; colours are the scores of a task divided by its largest "
        "(MaxAbsScaler).",
        models=(model,),
        seeds=3,
        small=Small(tasks=("glue/mrpc", "glue/rte"), seeds=1),
    )


def _robustness_figure(number: int, model: str) -> Entry:
    return Entry(
        paper=ADDROP,
        item=f"figure-{number}",
        title=f"Scores of trained models while attention positions are dropped, by layer ({model} in the paper)",
        rows=(_PLAIN, _ADDROP),
        tasks=("glue/rte", "glue/mrpc"),
        measure="robustness",
        drawing="lines",
        axis="share of the positions that are dropped",
        is_reading=False,
        setting=f"{_TABLE_11} Positions are dropped in the order of their gradient attribution, highest first, "
        "lowest first or at random; the tasks are our choice.",
        models=(model,),
        protocols=("last",),
        seeds=3,
        small=Small(tasks=("glue/rte",), seeds=1),
    )


ENTRIES = (
    Entry(
        paper=ADDROP,
        item="table-1",
        title="Scores on the development sets of GLUE, beside other regularisers",
        rows=(
            _PLAIN,
            Row("SCAL", "scal"),
            Row("R-Drop", "rdrop"),
            Row("HiddenCut", "hiddencut"),
            _ADDROP,
        ),
        tasks=_GLUE,
        setting=f"{_TABLE_11} SuperT is left out: its two phases are `attendrop.find_supertickets`, not a run. The "
        "rivals have the defaults of this library.",
        models=_BOTH,
        numbers=(Number(_OWN, "glue/sst2", 0.958, "public listings of the results of the paper", "roberta-base"),),
        claims=(_IMPROVES,),
        small=Small(tasks=("glue/rte", "glue/mrpc"), seeds=1),
    ),
    Entry(
        paper=ADDROP,
        item="table-2",
        title="Ablation: the attribution, the label, and cross-tuning",
        rows=(
            _PLAIN,
            Row("AD-DROP", "addrop:{paper}"),
            Row("with integrated gradients", "addrop:{paper},attribution=iga"),
            Row("with the attention itself", "addrop:{paper},attribution=aa"),
            Row("with random positions", "addrop:{paper},attribution=rd"),
            Row("with gold labels", "addrop:{paper},label=gold"),
            Row("without cross-tuning", "addrop:p={p},q={q},layers={layers},cross_tuning=false"),
        ),
        tasks=_SMALL_GLUE,
        setting=_TABLE_11,
        models=_BOTH,
        claims=(
            Claim(
                "attribution by gradients is better than random positions", "section 4", _OWN, "with random positions"
            ),
        ),
        small=Small(tasks=("glue/rte",), seeds=1),
    ),
    Entry(
        paper=ADDROP,
        item="table-3",
        title="Named entities: CoNLL-2003",
        rows=(_PLAIN, _ADDROP),
        tasks=("conll2003",),
        setting="p, q, learning rate, batch size and epochs from the authors' script, which evaluates on the test set.",
        models=("google/electra-base-discriminator",),
        claims=(_IMPROVES,),
    ),
    Entry(
        paper=ADDROP,
        item="table-4",
        title="Translation: WMT 2016, English-Romanian and Turkish-English",
        rows=(_PLAIN, _ADDROP),
        tasks=("wmt16/en-ro", "wmt16/tr-en"),
        setting="p, q, learning rate, batch size, length and epochs from the authors' scripts, which mask the encoder.",
        models=("Helsinki-NLP/opus-mt-en-ro", "Helsinki-NLP/opus-mt-tr-en"),
        family="translation",
        claims=(_IMPROVES,),
        small=Small(tasks=("multi30k/en-de",), seeds=1),
    ),
    Entry(
        paper=ADDROP,
        item="table-5",
        title="Repeated runs: mean and standard deviation over seeds",
        rows=(_PLAIN, _ADDROP),
        tasks=_SMALL_GLUE,
        measure="deviation",
        setting=_TABLE_11,
        models=_BOTH,
        claims=(_IMPROVES,),
        small=Small(tasks=("glue/rte",), seeds=3),
    ),
    Entry(
        paper=ADDROP,
        item="table-6",
        title="Out of distribution: MNLI to HANS, QQP to PAWS-X",
        rows=(_PLAIN, _ADDROP),
        tasks=("glue/mnli", "glue/qqp"),
        measure="also",
        setting=_TABLE_11,
        models=_BOTH,
        also={"glue/mnli": ("hans",), "glue/qqp": ("paws-x/en",)},
        claims=(_IMPROVES,),
        small=Small(tasks=("glue/mnli",), also=("hans",)),
    ),
    Entry(
        paper=ADDROP,
        item="table-7",
        title="Cost of a step by attribution, as a multiple of fine-tuning",
        rows=(
            _PLAIN,
            Row("gradient", "addrop:p={p},q={q},layers={layers},cross_tuning=false"),
            Row("integrated gradient", "addrop:p={p},q={q},layers={layers},cross_tuning=false,attribution=iga"),
            Row("attention", "addrop:p={p},q={q},layers={layers},cross_tuning=false,attribution=aa"),
            Row("random", "addrop:p={p},q={q},layers={layers},cross_tuning=false,attribution=rd"),
        ),
        tasks=_SMALL_GLUE,
        measure="cost",
        setting=f"{_TABLE_11} Every epoch has AD-DROP, so that a step of the method is what is timed.",
        models=_BOTH,
        protocols=("last",),
        seeds=3,
        small=Small(tasks=("glue/rte",), epochs=1),
    ),
    Entry(
        paper=ADDROP,
        item="table-8",
        title="Few examples of each class",
        rows=(_PLAIN, _ADDROP),
        tasks=("glue/sst2", "glue/mrpc", "glue/rte"),
        sizes=("shots=16", "shots=64", "shots=256"),
        axis="examples of each class",
        setting=f"{_TABLE_11} The numbers of examples are our choice.",
        models=_BOTH,
        claims=(_IMPROVES,),
        small=Small(tasks=("glue/sst2",), sizes=("shots=16", "shots=32")),
    ),
    Entry(
        paper=ADDROP,
        item="table-9",
        title="Larger models",
        rows=(_PLAIN, _ADDROP),
        tasks=_SMALL_GLUE,
        setting=f"{_TABLE_11} The values are those of base models: the paper's for larger ones are not known.",
        models=("roberta-large", "bert-large-uncased"),
        claims=(_IMPROVES,),
        small=Small(tasks=("glue/rte",)),
    ),
    Entry(
        paper=ADDROP,
        item="figure-2",
        title="Losses when positions of high, low or random attribution are dropped, or none",
        rows=(
            Row("none"),
            Row("random", "addrop:p=0.3,q=1,layers={layers},cross_tuning=false,attribution=rd"),
            Row("low attribution", "addrop:p=0.3,q=1,layers={layers},cross_tuning=false,direction=low"),
            Row("high attribution", "addrop:p=0.3,q=1,layers={layers},cross_tuning=false"),
        ),
        tasks=("glue/mrpc",),
        measure="curves",
        drawing="lines",
        axis="epoch",
        is_reading=False,
        setting=f"{_TABLE_11} The task, p = 0.3 and q = 1 are our choice.",
        models=_BOTH,
        protocols=("last",),
        claims=(
            Claim(
                "dropping low attribution accelerates training",
                _ABSTRACT,
                "low attribution",
                "none",
                -1,
                None,
                "training loss",
                "first",
            ),
            Claim(
                "dropping low attribution increases the risk of overfitting",
                _ABSTRACT,
                "low attribution",
                "none",
                1,
                None,
                "development loss",
                "last",
            ),
            Claim(
                "dropping high attribution reduces overfitting",
                _ABSTRACT,
                "high attribution",
                "none",
                -1,
                None,
                "development loss",
                "last",
            ),
        ),
        small=Small(epochs=3),
    ),
    _grid_figure(4, "roberta-base"),
    Entry(
        paper=ADDROP,
        item="figure-5",
        title="Scores by the share of the training data",
        rows=(_PLAIN, _ADDROP),
        tasks=("glue/rte", "glue/mrpc"),
        sizes=("fraction=0.2", "fraction=0.4", "fraction=0.6", "fraction=0.8", "all"),
        drawing="lines",
        axis="share of the training data",
        setting=f"{_TABLE_11} The tasks and shares are our choice.",
        models=_BOTH,
        claims=(_IMPROVES,),
        small=Small(tasks=("glue/rte",), sizes=("fraction=0.02", "fraction=0.04"), seeds=1),
    ),
    _layers_figure(6, "roberta-base"),
    _robustness_figure(7, "roberta-base"),
    _robustness_figure(8, "bert-base-uncased"),
    _grid_figure(9, "bert-base-uncased"),
    _layers_figure(10, "bert-base-uncased"),
)
