"""Read words with tags, in the columns of CoNLL or as `word/TAG`, and plain texts."""

from __future__ import annotations

import re
from collections import Counter

from ....errors import UserError
from ..findings import NOTE, Finding, plural
from .decoding import decode
from .delimited import read_text_table, table_separator
from .table import Problem, Source, Table


def _is_comment(fields: list[str], width: int | None) -> bool:
    """Return whether a line is a comment of CoNLL-U, `# text = …`.

    The word `#` has as many columns as every other word.
    """
    return fields[0].startswith("#") and (len(fields) != width if width else "=" in fields)


def read_conll(source: Source) -> Table:
    """Read one word and its tag in each line, with an empty line between sentences."""
    return _conll_of(source, decode(source))


# what stands between the columns of a CoNLL file; the first that fits most lines is that of the file
_BETWEEN = (r"[ \t]+", r"\t", r"\s+", r" *\|+ *", r" *; *", r" *, *")
_IOB_END = re.compile(r"(?<=.)([^\w\s]+|_)(?:O|[BIESLUM]-\w\S*)$")
_LOOKED_AT = 500
_CLASS = re.compile(r"\w+:\w+")  # a class and its finer class, as in TREC
_LEAST_LINES = 40  # from which on labels before texts are recognised
_SPACES = " \t\r\u00a0\u3000\u200b"


def _conll_separator(source: Source, lines: list[str]) -> str:
    """Return the pattern that divides the lines of a CoNLL file into a word and its tag."""
    if source.options.separator is not None:
        return re.escape(source.options.separator)
    filled = [line.strip(_SPACES) for line in lines if line.strip(_SPACES) and not line.startswith("#")][:_LOOKED_AT]
    shares = {}
    for pattern in _BETWEEN:
        widths = Counter(len(re.split(pattern, line)) for line in filled)
        widths.pop(1, None)
        shares[pattern] = max(widths.values(), default=0) / max(1, len(filled))
    best = max(shares.values())
    if not best and (sign := _sign_before_tags(filled)):
        source.findings.append(Finding(NOTE, f"{source.path} has {sign!r} between a word and its tag"))
        return f"{re.escape(sign)}(?!.*{re.escape(sign)})"  # a word may have the sign too
    chosen = next(pattern for pattern, share in shares.items() if share > best - 0.02)
    if best and chosen != _BETWEEN[0]:
        name = {r"\t": "tabs", r"\s+": "spaces"}.get(chosen, repr(chosen.strip(" *+\\")))
        source.findings.append(Finding(NOTE, f"{source.path} has {name} between a word and its tag"))
    return chosen if best else _BETWEEN[0]


def _sign_before_tags(lines: list[str]) -> str | None:
    """Return the sign before the IOB tag with which every line ends, such as `_` of `Anna_B-PER`; None without one."""
    signs = {end[1] if (end := _IOB_END.search(line)) else None for line in lines}
    return signs.pop() if len(signs) == 1 else None


def _conll_of(source: Source, text: str) -> Table:
    tokens: list[list[str]] = []
    tags: list[list[str]] = []
    lines: list[int] = []
    bad: set[int] = set()
    width, in_sentence = None, False
    written = text.split("\n")
    separator = re.compile(_conll_separator(source, written))
    for number, line in enumerate(written, 1):
        fields = separator.split(line.strip(_SPACES))
        if fields == [""] or fields[0] == "-DOCSTART-":
            in_sentence = False
            continue
        if not in_sentence and _is_comment(fields, width):
            continue
        width = width or len(fields)
        if not in_sentence:
            tokens.append([])
            tags.append([])
            lines.append(number)
            in_sentence = True
        if len(fields) != width:
            text = f"has {plural(len(fields), 'column')}, but the lines before it have {width}"
            advice = "every line of a CoNLL file has a word and its tag, in the same number of columns"
            source.drop(number, Problem(text, advice, "columns"))
            bad.add(len(tokens) - 1)
        tokens[-1].append(fields[0])
        tags[-1].append(fields[-1])
    if not tokens:
        raise UserError(f"{source.path} has no examples.")
    kept = [place for place in range(len(tokens)) if place not in bad]
    columns = {"tokens": tokens} if width == 1 else {"tokens": tokens, "tags": tags}
    chosen = {name: [values[place] for place in kept] for name, values in columns.items()}
    return source.table(dict(chosen), [lines[place] for place in kept], has_word_lines=True)


def read_txt(source: Source) -> Table:
    """Read a .txt file: sentences of `word/TAG`, a table with a separator, or the columns of a CoNLL file."""
    text = decode(source)
    if source.options.separator is None and not source.options.columns and _has_tagged_words(text):
        return _read_tagged_words(source, text)
    if source.options.separator is None and _has_fasttext_labels(text):
        return _read_fasttext(source, text)
    separator = source.options.separator or table_separator(text)
    if separator:
        return read_text_table(source, text, separator)
    return _read_leading_labels(source, text) if _has_leading_labels(text) else _conll_of(source, text)


def looks_structured(raw: bytes) -> bool:
    """Return whether the content of a file without a known suffix is a table, or has words with tags.

    UTF-16 counts as one.
    """
    if b"\0" in raw[:1000]:
        return True  # reported by the decoder
    text = raw[:100_000].decode("utf-8", "replace")
    if any(is_so(text) for is_so in (table_separator, _has_tagged_words, _has_fasttext_labels, _has_leading_labels)):
        return True
    widths = {len(line.split()) for line in text.split("\n")[:50] if line.strip() and not line.startswith("#")}
    return len(widths) == 1 and widths.pop() > 1


_FASTTEXT = "__label__"


def _has_fasttext_labels(text: str) -> bool:
    """Return whether the first lines begin with a label of fastText, `__label__spam`."""
    lines = [line for line in text.split("\n")[:_LOOKED_AT] if line.strip()]
    return bool(lines) and all(line.lstrip("\ufeff").startswith(_FASTTEXT) for line in lines)


def _read_fasttext(source: Source, text: str) -> Table:
    """Read a text on each line behind its labels; a list of labels if any line has several."""
    source.findings.append(
        Finding(NOTE, f"{source.path} is read as texts behind their labels, as fastText writes them")
    )
    texts, labels, lines = [], [], []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        count = next((place for place, word in enumerate(words) if not word.startswith(_FASTTEXT)), len(words))
        if words:
            texts.append(" ".join(words[count:]))
            labels.append([word.removeprefix(_FASTTEXT) for word in words[:count]])
            lines.append(number)
    has_one_each = all(len(of) == 1 for of in labels)
    return source.table({"text": texts, "label": [of[0] for of in labels] if has_one_each else labels}, lines)


def _has_leading_labels(text: str) -> bool:
    """Return whether each line has a label and a text of some words: `DESC:manner How did serfdom develop ?`."""
    lines = [line.split() for line in text.split("\n") if line.strip()][: 4 * _LOOKED_AT]
    labels, widths = {line[0] for line in lines}, {len(line) for line in lines}
    has_texts = len(widths) > 2 and sum(map(len, lines)) >= 5 * len(lines)
    are_few = len(lines) >= _LEAST_LINES and len(labels) <= len(lines) / 8
    return has_texts and min(widths) > 1 and len(labels) > 1 and (are_few or all(map(_CLASS.fullmatch, labels)))


def _read_leading_labels(source: Source, text: str) -> Table:
    """Return the texts and the labels before them."""
    source.findings.append(Finding(NOTE, f"{source.path} is read as a label and a text in each line"))
    numbered = [(number, line.split(maxsplit=1)) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    for number, parts in numbered:
        if len(parts) < 2:
            source.drop(number, Problem("has a label and no text", "write a text behind each label", group="label"))
    kept = [(number, parts) for number, parts in numbered if len(parts) == 2]
    columns = {"text": [text.strip() for _, (_, text) in kept], "label": [label for _, (label, _) in kept]}
    return source.table(dict(columns), [number for number, _ in kept])


_TAGGED = re.compile(r"\S+/[^\s/]+")  # a word may have slashes, and its tag has none


def _has_tagged_words(text: str) -> bool:
    """Return whether every word of the first lines has a tag after a slash."""
    words = [line.split() for line in text.split("\n")[:50]]
    return any(len(line) > 1 for line in words) and all(_TAGGED.fullmatch(word) for line in words for word in line)


def _read_tagged_words(source: Source, text: str) -> Table:
    """Return one sentence on each line, each word followed by a slash and its tag."""
    source.findings.append(Finding(NOTE, f"{source.path} is read as sentences of words with tags, written word/TAG"))
    tokens, tags, lines = [], [], []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        wrong = next((word for word in words if not _TAGGED.fullmatch(word)), None)
        if wrong is not None:
            source.drop(number, Problem(f"has {wrong!r:.40} without a tag", "write word/TAG", group="tagged"))
        elif words:
            pairs = [word.rpartition("/") for word in words]
            tokens.append([word for word, _, _ in pairs])
            tags.append([tag for _, _, tag in pairs])
            lines.append(number)
    return source.table({"tokens": tokens, "tags": tags}, lines)


def read_lines(source: Source) -> Table:
    """Read one text from each line; empty lines are skipped."""
    numbered = [(number, line.strip()) for number, line in enumerate(decode(source).split("\n"), 1) if line.strip()]
    return source.table({"text": [line for _, line in numbered]}, [number for number, _ in numbered])
