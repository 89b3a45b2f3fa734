"""What a newcomer meets in the first hour: the defaults of a run, and where every finding of that hour is tested."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
import yaml
from datasets import Dataset

from attendrop import fine_tune
from attendrop.errors import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.runs import Listener, Result
from attendrop.lab.runs.curves import plot_runs
from attendrop.lab.runs.recipe import choose_recipe, epochs_for, rate_for
from attendrop.lab.runs.settings import make_config
from attendrop.lab.studies.spec import RunSpec
from attendrop.lab.studies.worker import Worker
from attendrop.lab.tasks import Task
from helpers.cli_tools import save_encoder, sentences, write_csv
from studies import defaults

pytestmark = pytest.mark.xdist_group("first hour")

TESTS = Path(__file__).parents[2]

# file -> test -> what made a newcomer hesitate, and no longer does
FINDINGS = {
    "lab/tasks/test_diagnostics.py": {
        "test_finding": (
            "a byte order mark, latin-1, cp1252 and UTF-16 are recognised or named; a header that is data is "
            "refused; a file without a known suffix is recognised by its content; labels that differ by case or "
            "spaces, decimal commas, missing values; a tag that breaks IOB is named with its line; one text with "
            "different labels, and repeated rows"
        ),
        "test_every_way_of_writing_a_table_gives_the_same_rows": "the separator is found",
        "test_a_table_without_a_header_is_read_with_the_names_that_are_given": "a file without a header can be read",
        "test_words_and_tags_of_a_text_are_read": "words with tags after a slash are read",
        "test_rows_that_training_and_validation_share_are_counted": "rows that training and validation share",
        "test_bad_rows_are_dropped_only_on_request_and_each_is_named": "bad rows are left out on request only",
        "test_the_first_sheet_of_an_excel_file_is_read": "Excel and compressed files",
    },
    "lab/runs/test_losses.py": {
        "test_several_labels_train_evaluate_and_predict": "several labels for a text",
        "test_multiple_choice_from_a_file_trains_and_predicts_its_letters": "multiple choice",
        "test_balanced_weights_are_those_of_scikit_learn": "class weights",
        "test_balanced_sampling_draws_equally_many_of_each_class": "balanced sampling",
    },
    "lab/runs/test_lora.py": {
        "test_adapters_are_trained_and_merged_into_an_ordinary_model": "adapters from the command line",
        "test_a_finished_run_keeps_the_model_and_not_its_checkpoints": "optimizer states are not kept",
        "test_run_yaml_repeats_the_run_from_any_directory": "run.yaml repeats the run",
        "test_an_out_of_memory_error_names_the_flags_that_help": "an out-of-memory error names flags",
        "test_mistakes_with_adapters_raise_one_line_errors": "quantisation without a GPU",
    },
    "lab/evaluation/test_evaluation.py": {
        "test_a_run_judges_its_model": "baseline, intervals, classes, confusion, calibration, errors",
        "test_a_model_that_gives_one_answer_is_warned_of": "a model that gives one answer only",
        "test_another_file_is_judged_later_as_in_the_run": "another file is judged later",
        "test_predictions_keep_all_columns_in_every_format": "predictions keep all columns",
        "test_tags_are_aligned_with_their_words": "tags are aligned with words",
        "test_numbers_are_rounded_to_a_hundredth_of_the_error": "numbers are rounded sensibly",
        "test_a_translation_is_judged_text_by_text": "errors.csv of a translation",
        "test_of_equal_scores_the_smallest_loss_is_kept": "ties are broken by the loss",
    },
    "lab/report/test_figures.py": {
        "test_sentence_with_its_dropped_positions_is_drawn": "sentence.png says what it shows",
    },
    "lab/cli/test_first_hour.py": {
        "test_epochs_and_rate_are_chosen_from_the_data": "the default recipe predicted one class",
        "test_figures_are_returned": "figures are objects",
        "test_the_documents_have_the_default_length": "the default of --max-length",
        "test_rows_that_cannot_be_predicted_are_left_out_on_request_and_named": "rows were left out silently",
    },
    "lab/cli/test_terminal.py": {
        "test_help_shows_the_flags_that_matter_and_help_all_shows_every_flag": "the help had a thousand lines",
        "test_help_cuts_no_flag_in_a_terminal_of_80_columns": "flags were cut",
        "test_a_bar_is_drawn_only_where_a_line_can_be_drawn_again": "bars in files and in dumb terminals",
        "test_the_shell_completes_commands_flags_and_methods_without_large_libraries": "completion",
        "test_fine_tune_has_the_parameters_of_the_flags": "fine_tune has real parameters",
        "test_a_result_is_short_in_a_shell_and_a_table_in_a_notebook": "a result in a notebook",
    },
    "repository/test_examples.py": {
        "test_notebook_runs_from_first_to_last_cell": "the notebook",
    },
    "repository/test_docs.py": {
        "test_loop_in_the_guide_trains_unchanged": "the loop with an Engine",
    },
    "lab/cli/test_demo.py": {
        "test_demo_from_download_to_summary": "the last screen of the demo",
    },
}


@pytest.mark.parametrize("file", FINDINGS)
def test_every_finding_has_its_test(file: str) -> None:
    text = (TESTS / file).read_text(encoding="utf-8")
    assert FINDINGS[file].keys() <= set(re.findall(r"^def (test_\w+)\(", text, re.MULTILINE))


class Notes(Listener):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first hour")
    rows = sentences(20, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    write_csv(folder / "train.csv", rows)
    write_csv(folder / "dev.csv", sentences(8, seed=2))
    return folder


def settings_of(place: Path, **more: Any) -> dict[str, Any]:
    files = {"train_file": str(place / "train.csv"), "validation_file": str(place / "dev.csv")}
    return {"model": str(place / "model"), **files, "use_cpu": True, **more}


def test_few_examples_get_many_passes_and_small_models_a_high_rate() -> None:
    assert [epochs_for(examples, 16) for examples in (10, 300, 1600, 5000, 10**6)] == [20, 20, 10, 4, 3]
    assert epochs_for(1600, 64) == 20
    assert [rate_for(width) for width in (1024, 768, 384, 32)] == [1.5e-5, 2e-5, 4e-5, 1e-4]
    assert rate_for(768, is_lora=True) == 2e-4
    for kind in ("token_classification", "multilabel"):
        assert [rate_for(width, kind) for width in (1024, 768, 384)] == [3.8e-5, 5e-5, 1e-4]


def test_recipe_is_returned_and_the_configuration_stays() -> None:
    config = make_config({"model": "m", "task": "glue/rte"})
    train = Dataset.from_dict({"label": [0, 1] * 50})
    data = SimpleNamespace(train=train, task=Task("t", "classification", ("text",), "label", ("bad", "good")))
    arguments = transformers.TrainingArguments("unused", use_cpu=True)
    recipe = choose_recipe(config, arguments, data, transformers.BertConfig(hidden_size=384))
    assert recipe.settings.keys() == {"num_train_epochs", "learning_rate"}
    assert "learning_rate" not in config.training  # nothing is changed in place
    (sentence,) = recipe.sentences
    assert sentence.startswith("chosen: ")


def test_epochs_and_rate_are_chosen_from_the_data(place: Path, tmp_path: Path) -> None:
    """The choice is said, is written to run.yaml, is the same in a study, and gives way to flags."""
    notes, out = Notes(), tmp_path / "chosen"
    result = fine_tune(notes, **settings_of(place), output_dir=str(out))
    (sentence,) = [text for text in notes.texts if text.startswith("chosen: ")]
    assert (
        "20 epochs (40 steps) for 20 examples, because few examples need many passes, and a learning rate" in sentence
    )
    assert sentence.endswith("set others with --num-train-epochs and --learning-rate")
    written = yaml.safe_load((out / "run.yaml").read_text(encoding="utf-8"))
    assert (written["num_train_epochs"], written["learning_rate"]) == (20, 1e-4)
    assert result.record.cost.steps == 40
    record = Worker(device="cpu").run(RunSpec(settings_of(place), "plain", "train.csv", seed=42))
    assert (record.settings["num_train_epochs"], record.settings["learning_rate"]) == (20, 1e-4)
    assert record.cost.steps == 40
    notes = Notes()
    given = settings_of(place, num_train_epochs=1, learning_rate=1e-3, max_length=6)
    fine_tune(notes, **given, output_dir=str(tmp_path / "given"))
    assert not [text for text in notes.texts if text.startswith("chosen: ")]
    written = yaml.safe_load((tmp_path / "given/run.yaml").read_text(encoding="utf-8"))
    assert (written["num_train_epochs"], written["learning_rate"]) == (1, 1e-3)
    (cut,) = [text for text in notes.texts if "of the texts of train have more than 6 tokens and are cut" in text]
    assert cut.startswith("warning: ")
    assert "takes 256 tokens, see --max-length" in cut


@pytest.fixture(scope="module")
def finished(place: Path) -> Result:
    return fine_tune(**settings_of(place, max_steps=2), output_dir=str(place / "run"))


def test_figures_are_returned(finished: Result, tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    figure = plot_runs([finished.folder])
    assert isinstance(figure, Figure)
    assert len(figure.axes) == 3
    with pytest.raises(UserError):
        plot_runs([tmp_path])


def test_the_documents_have_the_default_length(finished: Result) -> None:
    page = (TESTS.parent / "docs/your-own-data.md").read_text(encoding="utf-8")
    stated = re.search(r"`--max-length` tokens \(by default (\d+) for your own files", page)
    assert stated is not None
    assert finished.record.max_length == min(int(stated[1]), finished.model.config.max_position_embeddings)


def test_rows_that_cannot_be_predicted_are_left_out_on_request_and_named(
    finished: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new.csv"
    file.write_text("good,a fine film\nbad,\n", encoding="utf-8")
    words = ["predict", str(finished.folder), "--file", str(file), "--columns", "label,text"]
    assert run(words) == 2
    assert "line 2 of" in (output := capsys.readouterr().err)
    assert "--drop-bad-rows leaves such rows out" in output
    assert run([*words, "--drop-bad-rows"]) == 0
    assert "warning: 1 row of" in (output := capsys.readouterr().out)
    assert "1 prediction is in" in output


def test_the_choice_is_compared_with_the_best_mean_of_the_grid() -> None:
    """Only seeds count that every point has, and only the last choice."""
    same = {"task": "t", "examples": 300, "evaluated": 100, "metric": "accuracy"}
    points = [
        ("chosen", "20", "2e-05", 0, 10.0),
        ("chosen", "20", "4e-05", 0, 80.0),
        ("chosen", "20", "4e-05", 1, 82.0),
    ]
    points += [("grid", "3", "1e-04", 0, 90.0), ("grid", "3", "1e-04", 1, 70.0), ("grid", "3", "1e-04", 2, 100.0)]
    points += [("grid", "10", "5e-05", 0, 81.5), ("grid", "10", "5e-05", 1, 82.5)]
    names = ("by", "epochs", "rate", "seed", "score")
    rows = [{**same, **dict(zip(names, point, strict=True))} for point in points]
    (summary,) = defaults.summaries(rows)
    assert (summary["best"], summary["best score"], summary["seeds"]) == (("10", "5e-05"), 82.0, 2)
    assert (summary["chosen"], summary["score"], summary["difference"]) == (("20", "4e-05"), 81.0, -1.0)
    assert defaults.markdown(rows).splitlines()[2:] == [
        "| t | 300 | 100 | 2 | accuracy | 81.0 (20 × 4e-05) | 82.0 (10 × 5e-05) | -1.0 |"
    ]
    assert not defaults.summaries(rows[:3])
