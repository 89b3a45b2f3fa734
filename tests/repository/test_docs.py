"""The documentation: complete, with links and paths that exist, and examples that run."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

import attendrop
from attendrop import METHODS, Engine, Progress
from docs.links import broken
from docs.tables.methods import card as read_card

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


each_page = pytest.mark.parametrize("page", PAGES, ids=_name)

SECTIONS = (
    "Idea",
    "Formula",
    "Fields",
    "Cost",
    "Differences from the paper",
    "When not to use it",
    "Recipe of the paper",
    "Examples",
    "Logged values",
)


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs/hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


# ---- the API reference ----------------------------------------------------------------------------------------


def test_every_public_name_has_one_api_entry(hooks: ModuleType) -> None:
    pages = [line for group in hooks.GROUPS for line in hooks.api_page(group).splitlines()]
    entries = [line.removeprefix("::: ") for line in pages if line.startswith("::: ")]
    assert len(set(entries)) == len(entries)
    assert {f"attendrop.{name}" for name in attendrop.__all__} <= set(entries)
    for package in ("prune", "lab.tasks", "lab.runs"):
        names = importlib.import_module(f"attendrop.{package}").__all__
        assert {name for name in names if name not in attendrop.__all__} == {
            entry.rpartition(".")[2] for entry in entries if entry.startswith(f"attendrop.{package}.")
        }
    assert {"attendrop.lab.report.attendout_figure.plot_run", "attendrop.lab.report.page.write_report"} <= set(entries)


def test_public_name_without_a_page_raises(hooks: ModuleType) -> None:
    assert hooks.group_of("model.attribution").page == "attribution"
    assert hooks.group_of("model.plan").page == "models"
    with pytest.raises(ValueError, match=r"no page of the API reference takes attendrop\.elsewhere"):
        hooks.group_of("elsewhere")


def test_links_between_files_become_links_between_pages(hooks: ModuleType) -> None:
    def on_site(markdown: str, page: str) -> str:
        return hooks._LINK.sub(lambda link: hooks._link_on_site(link, page), markdown)

    assert on_site("[a](docs/methods/addrop.md#cost)", "index.md") == "[a](methods/addrop.md#cost)"
    assert on_site("![a](docs/images/a.png)", "index.md") == "![a](images/a.png)"
    assert on_site("[a](../../DESIGN.md)", "guides/own-loop.md") == "[a](../design.md)"
    assert on_site("[a](../../examples/trainer.py)", "guides/trainer.md") == "[a](../examples/trainer.md)"
    assert on_site("[a](LICENSE)", "index.md") == "a"
    for unchanged in ("[a](https://arxiv.org/abs/1)", "[a](#speed)", "[a](rdrop.md)"):
        assert on_site(unchanged, "methods/r3f.md") == unchanged


def test_link_of_the_site_that_leads_nowhere_is_listed(tmp_path: Path) -> None:
    (tmp_path / "guide").mkdir()
    (tmp_path / "index.html").write_text('<h1 id="top"><a href="guide/#how">a</a><a href="#top"><a href="https://x">')
    page = '<p id="how"><a href="../#top">a</a><a href="..#no"><a href="../gone/"><img src="../picture.png">'
    (tmp_path / "guide" / "index.html").write_text(page)
    links = ["..#no", "../gone/", "../picture.png"]
    assert broken(tmp_path) == [f"guide/index.html: {link}" for link in links]


# ---- pages ----------------------------------------------------------------------------------------------------


@each_page
def test_links_point_to_existing_files(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path = target.partition("#")[0]
        if path and ":" not in path:
            assert (page.parent / path).exists(), target


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=_name)  # it is history
def test_source_paths_exist(page: Path) -> None:
    for path in re.findall(
        r"`((?:src|tests|benchmarks|studies|examples|docs)/[\w./-]+)`", page.read_text(encoding="utf-8")
    ):
        assert (ROOT / path).exists(), path


def test_links_of_llms_txt_name_files() -> None:
    text = (ROOT / "docs/llms.txt").read_text(encoding="utf-8")
    paths = re.findall(r"\]\(https://github\.com/attendrop/attendrop/blob/main/([^)]+)\)", text)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    assert f"{len(METHODS)} published regularisers" in text


def test_page_for_reviewers_names_every_file_of_results() -> None:
    text = (ROOT / "docs/reviewers.md").read_text(encoding="utf-8")
    files = [path.name for folder in ("benchmarks", "studies") for path in ROOT.glob(f"{folder}/results/*.csv")]
    assert len(files) > 25
    assert [name for name in files if f"`{name}`" not in text and f"/{name}`" not in text] == []


@pytest.mark.parametrize("method", METHODS)
def test_card_has_front_matter_and_all_sections(method: str) -> None:
    card = read_card(method)
    assert all(card)
    assert card.url.startswith("https://")
    text = (ROOT / "docs/methods" / f"{method}.md").read_text(encoding="utf-8")
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    for section in SECTIONS:
        assert any(title.startswith(section) for title in titles), section


def test_loop_in_the_guide_trains_unchanged() -> None:
    text = (ROOT / "docs/guides/own-loop.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, num_labels=3
    )
    model = BertForSequenceClassification(config).eval()  # as `from_pretrained` returns it
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    loader = [{"input_ids": torch.randint(20, (4, 6)), "labels": torch.randint(3, (4,))} for _ in range(2)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    exec(
        compile(code, "own-loop.md", "exec", dont_inherit=True),
        {"model": model, "loader": loader, "optimizer": optimizer},
    )
    assert model.training
    assert any(not torch.equal(before[name], parameter) for name, parameter in model.named_parameters())


def test_methods_in_the_guide_run() -> None:
    text = (ROOT / "docs/guides/own-method.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    code = "\n".join(block for block in blocks if "@dataclass" in block)
    guide = ModuleType("guide")
    sys.modules[guide.__name__] = guide
    exec(compile(code, "own-method.md", "exec", dont_inherit=True), vars(guide))
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, num_labels=3
    )
    model = BertForSequenceClassification(config).train()
    batch = {"input_ids": torch.randint(20, (4, 6)), "labels": torch.randint(3, (4,))}
    skipped = set()
    with Engine(model, [guide.SkipOneBlock(p=0.5), guide.ConfidencePenalty(weight=0.1)]) as engine:
        for step in range(20):
            engine.begin_step(Progress(step=step, total_steps=20))
            with engine.micro_batch(batch) as inputs:
                skipped.add(engine.seams.plan.skip)
                outputs = model(**inputs)
                loss = engine.loss(outputs)
                loss.backward()
            p = outputs.logits.softmax(-1)
            entropy = -(p * p.log()).sum(-1).mean()
            torch.testing.assert_close(loss, outputs.loss - 0.1 * entropy)
    assert skipped == {frozenset(), frozenset({0}), frozenset({1})}
