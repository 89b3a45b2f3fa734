"""The tables and figures of AttendOut, arXiv 2104.04692: version 2 (learned dropout) and version 1 (self-pruning).

The documents of this project say what Figures 3 and 4 and the resource usage of version 2 show; the content of the
tables is our reading (`is_reading`). No score of the papers is known.
"""

from __future__ import annotations

from .entry import ATTENDOUT, ATTENDOUT_1, Claim, Entry, Row, Small

_OF_PAPER = "T=15,samples=0,credit=paired,init_drop=0.55,layer_offsets=false,normalize=false"
_SETTING = (
    "T = 15 and the generator's rate from version 1, section 5.1; P(drop) is set to 0.55 at the start, after Figure 3; "
    "learning rate 2e-5 and 3 epochs are our choice."
)
_PLAIN = Row("dropout 0.1")
_ATTENDOUT = Row("AttendOut", f"attendout:{_OF_PAPER}")
_STRONGER = Claim("AttendOut is stronger than ordinary dropout", "abstract", "AttendOut", "dropout 0.1")
_GLUE = ("glue/cola", "glue/sst2", "glue/mrpc", "glue/stsb", "glue/rte")
_PRUNED = Row("self-pruning", f"attendout:mode=prune,{_OF_PAPER}")
_PRUNING_CLAIMS = (
    Claim("10 to 11 of 12 layers are pruned", "version 1", "self-pruning", None, 1, (10 / 12, 11 / 12), "share pruned"),
    Claim("scores are equal or better", "version 1, abstract", "self-pruning", "dropout 0.1", 1, None, "score"),
    Claim("nearly twice as fast", "version 1, abstract", "self-pruning", None, 1, (1.7, 2.2), "speed-up"),
)


def _pruning(item: str, title: str, tasks: tuple[str, ...], small: Small) -> Entry:
    return Entry(
        paper=ATTENDOUT_1,
        item=item,
        title=title,
        rows=(_PLAIN, _PRUNED),
        tasks=tasks,
        measure="pruning",
        setting=f"{_SETTING} A layer is pruned if its P(drop) in the last round is above that of the start; the "
        "threshold is our choice.",
        protocols=("last",),
        claims=_PRUNING_CLAIMS,
        small=small,
    )


ENTRIES = (
    Entry(
        paper=ATTENDOUT,
        item="table-1",
        title="Scores on GLUE, beside other dropouts",
        rows=(
            _PLAIN,
            Row("dropout 0.2", "plain@attention_dropout=0.2"),
            Row("LayerDrop", "layerdrop:p=0.2"),
            Row("DropHead", "drophead"),
            Row("UniDrop", "unidrop"),
            _ATTENDOUT,
        ),
        tasks=_GLUE,
        setting=f"{_SETTING} The rivals are our choice.",
        models=("bert-base-uncased", "roberta-base"),
        claims=(_STRONGER,),
        small=Small(tasks=("glue/rte",), seeds=1),
    ),
    Entry(
        paper=ATTENDOUT,
        item="table-2",
        title="Other tasks: multiple choice, documents, tags",
        rows=(_PLAIN, _ATTENDOUT),
        tasks=("swag", "imdb", "conll2003", "ptb"),
        setting=f"{_SETTING} The tasks are our choice.",
        claims=(_STRONGER,),
        small=Small(tasks=("conll2003", "imdb"), seeds=1),
    ),
    Entry(
        paper=ATTENDOUT,
        item="table-3",
        title="Where the rewards are from",
        rows=(
            _PLAIN,
            Row("development set", f"attendout:{_OF_PAPER},reward_on=dev"),
            Row("held-out training examples", f"attendout:{_OF_PAPER},reward_on=held_out"),
            Row("noisy training examples", f"attendout:{_OF_PAPER},reward_on=noisy"),
        ),
        tasks=_GLUE,
        setting=_SETTING,
        small=Small(tasks=("glue/rte",), examples=64, batch=4, seeds=1),
    ),
    Entry(
        paper=ATTENDOUT,
        item="table-4",
        title="Two regularisers that follow: Attention LayerDrop and scheduled dropout",
        rows=(
            _PLAIN,
            _ATTENDOUT,
            Row("Attention LayerDrop", "attention_layerdrop:p=0.2"),
            Row("scheduled dropout", "scheduled_dropout:start=0.6,slopes=[-0.05,-0.6]"),
        ),
        tasks=_GLUE,
        setting=f"{_SETTING} Section 7 has p = 0.2 and the start of 0.6; the slope of the last layer is our choice.",
        small=Small(tasks=("glue/rte",), seeds=1),
    ),
    Entry(
        paper=ATTENDOUT,
        item="figure-3",
        title="P(drop) of each layer during training",
        rows=(_ATTENDOUT,),
        tasks=("glue/cola", "glue/qnli"),
        measure="gates",
        drawing="lines",
        axis="step",
        is_reading=False,
        setting=f"{_SETTING} Section 7 describes QNLI and CoLA; that P(drop) starts at 0.55 is no finding.",
        protocols=("last",),
        seeds=3,
        claims=(
            Claim(
                "P(drop) of the first layer stays near 0.55 on QNLI",
                "section 7",
                "AttendOut",
                None,
                1,
                (0.5, 0.6),
                "layer 0, qnli",
                "last",
            ),
        ),
        small=Small(tasks=("glue/cola",), examples=48, batch=4, epochs=3),
    ),
    Entry(
        paper=ATTENDOUT,
        item="figure-4",
        title="Convergence: losses and scores of AttendOut and of a separate plain run",
        rows=(_PLAIN, _ATTENDOUT),
        tasks=("glue/cola", "glue/rte"),
        measure="curves",
        drawing="lines",
        axis="epoch",
        is_reading=False,
        setting=f"{_SETTING} The tasks are our choice.",
        protocols=("last",),
        small=Small(tasks=("glue/rte",), epochs=3),
    ),
    Entry(
        paper=ATTENDOUT,
        item="resource-usage",
        title="Time and memory of AttendOut, as multiples of plain fine-tuning",
        rows=(_PLAIN, _ATTENDOUT),
        tasks=("glue/rte",),
        measure="cost",
        is_reading=False,
        setting=_SETTING,
        protocols=("last",),
        seeds=3,
        claims=(
            Claim("roughly twice the time", "resource usage", "AttendOut", None, 1, (1.5, 2.5), "time"),
            Claim("roughly twice the memory", "resource usage", "AttendOut", None, 1, (1.5, 2.5), "memory"),
        ),
        small=Small(examples=64, batch=4, seeds=2),
    ),
    _pruning(
        "table-1",
        "Self-pruning on GLUE: the score, the share of layers, and the speed",
        _GLUE,
        Small(tasks=("glue/rte",), examples=64, batch=4, seeds=1),
    ),
    _pruning(
        "table-2",
        "Self-pruning of documents and tags",
        ("imdb", "conll2003", "ptb"),
        Small(tasks=("imdb",), examples=64, batch=4, seeds=1),
    ),
)
