"""Images and sounds: what the model layer knows about them, every method on them, and whole runs from files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from scipy.io import wavfile

from attendrop import METHODS, Engine, Loop, fine_tune
from attendrop.errors import UserError
from attendrop.lab.runs.predict import predict_file, predict_texts
from attendrop.lab.tasks import ReadOptions, inspect_files, load_files
from attendrop.lab.tasks.modalities.audio import Audio
from attendrop.lab.tasks.models import head_modules
from attendrop.methods import make_method
from attendrop.model.seams import bind
from attendrop.model.sites import map_shape
from attendrop.model.tokens import real_keys
from helpers import media
from helpers.settings import SETTINGS
from helpers.training import same_parameters

LABELS = torch.tensor([0, 1, 2, 1])


def make_vit() -> tuple[Any, dict[str, Any]]:
    config = hf.ViTConfig(**media.SMALL, image_size=16, patch_size=4, num_labels=3, hidden_dropout_prob=0.1)
    return hf.ViTForImageClassification(config), {"pixel_values": torch.randn(4, 3, 16, 16), "labels": LABELS}


def make_wav2vec2() -> tuple[Any, dict[str, Any]]:
    model = hf.Wav2Vec2ForSequenceClassification(media.wav2vec2_config(num_labels=3, layerdrop=0.0))
    mask = (torch.arange(300) < torch.tensor([[300], [280], [190], [100]])).long()
    return model, {"input_values": torch.randn(4, 300) * mask, "attention_mask": mask, "labels": LABELS}


def make_whisper() -> tuple[Any, dict[str, Any]]:
    config = media.whisper_config()
    config.num_labels, config.max_source_positions = 3, 10
    return hf.WhisperForAudioClassification(config), {"input_features": torch.randn(4, 8, 20), "labels": LABELS}


MODELS = {"vit": make_vit, "wav2vec2": make_wav2vec2, "whisper": make_whisper}
REFUSED = {
    "attendout": "which replaces tokens|takes no token ids and no patches",
    "structure_mask": "reads the column",
    "lora_dropout": "no LoRA",
}


def train_two_steps(kind: str, method: Any | None) -> Any:
    torch.manual_seed(0)
    np.random.seed(0)  # of SpecAugment
    model, batch = MODELS[kind]()
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    methods = [] if method is None else [method]
    engine = Engine(model, methods, epochs=1, steps_per_epoch=2, loop=Loop(optimizer=optimizer))
    for _ in range(2):
        with engine.micro_batch(batch) as inputs:
            engine.loss(model(**inputs)).backward()
        engine.before_optimizer()
        optimizer.step()
        engine.after_optimizer()
        optimizer.zero_grad()
    engine.finish()
    engine.close()
    return model


@pytest.mark.parametrize("kind", MODELS)
def test_every_method_acts_or_is_refused_and_zero_strength_is_plain(kind: str) -> None:
    plain = train_two_steps(kind, None)
    assert all(parameter.isfinite().all() for parameter in plain.parameters())
    for name in METHODS:
        usual = make_method(name, SETTINGS[name].usual)
        if name in REFUSED:
            with pytest.raises(ValueError, match=REFUSED[name]):
                train_two_steps(kind, usual)
            continue
        trained = train_two_steps(kind, usual)
        assert all(parameter.isfinite().all() for parameter in trained.parameters()), name
        assert not same_parameters(trained, plain), name
        zero = make_method(name, SETTINGS[name].zero)
        if error := SETTINGS[name].zero_error:
            with pytest.raises(ValueError, match=error):
                train_two_steps(kind, zero)
            continue
        assert same_parameters(train_two_steps(kind, zero), plain), name


@pytest.mark.parametrize(("kind", "head"), [("vit", ["classifier"]), ("whisper", ["projector", "classifier"])])
def test_the_head_is_what_is_outside_of_the_encoder(kind: str, head: list[str]) -> None:
    """Whisper's class for sounds has no module of the name `base_model_prefix`."""
    assert head_modules(MODELS[kind]()[0]) == head


def test_frames_and_padding_of_sounds_are_those_of_the_model() -> None:
    model, batch = make_wav2vec2()
    seams = bind(model)  # finds the sites with an example of its own
    for length in (300, 222):
        short = {name: x[:, :length] if x.dim() == 2 else x for name, x in batch.items()}
        frames = model.wav2vec2.feature_extractor(short["input_values"]).shape[-1]
        assert map_shape(seams.sites[1], short) == (4, frames, frames)
        own = model._get_feature_vector_attention_mask(frames, short["attention_mask"])
        assert torch.equal(real_keys(model, seams.sites[1], short), own.bool())
    seams.unbind()


def test_a_probe_draws_the_masks_of_spec_augment_that_the_pass_draws() -> None:
    """They come from numpy: otherwise AD-DROP would explain another input than the one that it masks."""
    model, batch = make_wav2vec2()
    model.train()
    method = make_method("addrop", {**SETTINGS["addrop"].usual})
    np.random.seed(1)
    before = np.random.get_state()[1].tolist(), np.random.get_state()[2]
    with Engine(model, [method]) as engine, engine.micro_batch(batch) as inputs:
        assert (np.random.get_state()[1].tolist(), np.random.get_state()[2]) == before
        model(**inputs)
        assert (np.random.get_state()[1].tolist(), np.random.get_state()[2]) != before


# ---- whole runs ------------------------------------------------------------------------------------------------------


def losses_of(result: Any) -> list[float]:
    return [entry["loss"] for entry in result.record.history if "loss" in entry]


def run(tmp_path: Path, model: Path, data: Path, method: str, **settings: Any) -> Any:
    return fine_tune(
        model=model, train_file=data, method=method, output_dir=tmp_path / "out", learning_rate=3e-3,
        per_device_train_batch_size=8, logging_steps=1, use_cpu=True, **settings,
    )  # fmt: skip


def test_images_from_a_folder(tmp_path: Path) -> None:
    model, train = media.save_vit(tmp_path / "vit"), media.write_images(tmp_path / "photos", 12)
    test = media.write_images(tmp_path / "test", 2, seed=1)
    method = "addrop:p=0.5,q=0.5,cross_tuning=false"
    result = run(
        tmp_path,
        model,
        train,
        method,
        test_file=test,
        task="image_classification",
        num_train_epochs=3,
        validation_share=0.2,
    )
    losses = losses_of(result)
    assert losses[-1] < 0.8 * losses[0]
    assert result.scores["test"]["accuracy"] == 1.0
    assert any("addrop" in name for entry in result.record.history for name in entry)  # the method acts
    assert result.record.task_definition["modality"] == "image"
    rows = (tmp_path / "out" / "predictions_test.csv").read_text().splitlines()
    assert rows[0].startswith("file,label,prediction")
    assert rows[1].split(",")[1:3] == ["green", "green"]
    photo = str(test / "red" / "1.png")
    assert list(predict_texts(tmp_path / "out", [photo])) == [(photo, "red")]
    done = predict_file(tmp_path / "out", test, tmp_path / "predicted.csv")
    assert (done.examples, done.scores["accuracy"]) == (4, 1.0)
    assert "AutoImageProcessor" in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(UserError, match=r"'.*none.png' in column 'file', which does not exist"):
        list(predict_texts(tmp_path / "out", [str(tmp_path / "none.png")]))


def test_sounds_from_a_table(tmp_path: Path) -> None:
    model, table = media.save_wav2vec2(tmp_path / "wav2vec2"), media.write_tones(tmp_path, 20)
    result = run(tmp_path, model, table, "hiddencut:ratio=0.2", num_train_epochs=5)
    losses = losses_of(result)
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    assert result.scores["validation"]["accuracy"] == 1.0
    clips = [str(tmp_path / "clips" / name) for name in ("low1.wav", "high4.wav")]
    assert [label for _, label in predict_texts(tmp_path / "out", clips)] == ["low", "high"]


@pytest.mark.slow
def test_whisper_from_a_table_in_seconds(tmp_path: Path) -> None:
    model, table = media.save_whisper(tmp_path / "whisper"), media.write_tones(tmp_path, 10)
    result = run(tmp_path, model, table, "rdrop", num_train_epochs=2)
    assert result.record.max_length == 1  # what Whisper's extractor takes here
    assert all(np.isfinite(losses_of(result)))


# ---- files that cannot be used, or are unusual ----------------------------------------------------------------------


def test_bad_files_are_named_with_their_rows(tmp_path: Path) -> None:
    photos = media.write_images(tmp_path / "photos", 4)
    (photos / "red" / "1.png").write_bytes((photos / "red" / "1.png").read_bytes()[:200])
    (photos / "red" / "2.jpg").write_text("no image")
    table = tmp_path / "table.csv"
    rows = ["red/0.jpg,r", "red/1.png,r", "red/2.jpg,r", "green/9.png,g", ",g", "green/0.jpg,g"]
    table.write_text("image,colour\n" + "".join(f"photos/{row}\n" if row[0] != "," else f"{row}\n" for row in rows))
    errors = inspect_files(table).errors
    assert len(errors) == 3
    assert f"line 3 of {table} has the file" in errors[0]
    assert "cannot be read" in errors[0]
    assert "2 such rows" in errors[0]
    assert "line 5" in errors[1]
    assert "does not exist" in errors[1]
    assert "line 6" in errors[2]
    assert "has no path in column 'image'" in errors[2]
    data = load_files(table, options=ReadOptions(drop_bad_rows=True))
    assert data.train is not None
    assert len(data.train) == 2


def test_a_copy_of_a_file_is_the_same_example(tmp_path: Path) -> None:
    photos = media.write_images(tmp_path / "photos", 3)
    shutil.copy(photos / "red" / "1.png", photos / "red" / "again.png")
    shutil.copy(photos / "red" / "0.jpg", photos / "green" / "red.jpg")
    messages = [finding.text for finding in inspect_files(photos).findings]
    assert any("1 row of" in text and "repeats an earlier row" in text for text in messages)
    assert any("1 image of" in text and "has different labels" in text for text in messages)


def test_sounds_of_any_rate_width_and_number_of_channels(tmp_path: Path) -> None:
    time = np.arange(8000) / 8000
    sound = 0.5 * np.sin(2 * np.pi * 500 * time)
    wavfile.write(tmp_path / "a.wav", 8000, np.stack([sound, sound], 1).astype(np.float32))
    wavfile.write(tmp_path / "b.wav", 8000, (sound * 32767).astype(np.int16))
    wavfile.write(tmp_path / "c.wav", 8000, (sound * 127 + 128).astype(np.uint8))
    wavfile.write(tmp_path / "d.wav", 4000, np.zeros(400, dtype=np.int16))
    extractor = hf.Wav2Vec2FeatureExtractor(sampling_rate=4000)
    for name in ("a.wav", "b.wav", "c.wav"):
        samples = Audio().read(str(tmp_path / name), extractor, max_length=2)
        assert samples.shape == (4000,)
        assert np.abs(np.fft.rfft(samples)).argmax() == 500
        assert 0.45 < np.abs(samples[100:-100]).max() < 0.55
    (tmp_path / "t.csv").write_text("sound,label\na.wav,x\nb.wav,y\nc.wav,y\nd.wav,x\n")
    messages = [finding.text for finding in inspect_files(tmp_path / "t.csv").findings]
    assert any("different sampling rates: 8,000 Hz (3 files), 4,000 Hz (1 file)" in text for text in messages)
    assert any("1 sound of" in text and "is silent (first: line 5)" in text for text in messages)


def test_flac_is_read_with_soundfile(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    sound = 0.5 * np.sin(2 * np.pi * 500 * np.arange(4000) / 4000)
    soundfile.write(tmp_path / "a.flac", sound, 4000)
    samples = Audio().read(str(tmp_path / "a.flac"), hf.Wav2Vec2FeatureExtractor(sampling_rate=4000), max_length=1)
    assert np.abs(samples - sound).max() < 1e-3


def test_invalid_folders_and_kinds_are_refused(tmp_path: Path) -> None:
    photos = media.write_images(tmp_path / "train", 2)
    shutil.copytree(photos, tmp_path / "both" / "train")
    shutil.copytree(photos, tmp_path / "both" / "test")
    tones = media.write_tones(tmp_path, 2)
    for source, kind, message in (
        (photos / "red", None, "without sub-folders"),
        (tmp_path / "both", None, "which are splits and not classes"),
        (
            photos,
            "token_classification",
            "is a folder, .* must be classification or regression or multilabel",
        ),
        (photos, "mlm", "is a folder"),
        (tones, "image_classification", "no column with paths of images"),
        (tones, "regression", "kind must be classification"),
    ):
        with pytest.raises(UserError, match=message):
            load_files(source, kind=kind)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="is a folder; give the file itself"):
        load_files(tmp_path / "empty")


def test_methods_and_models_that_do_not_fit_are_refused_before_training(tmp_path: Path) -> None:
    photos, vit = media.write_images(tmp_path / "photos", 4), media.save_vit(tmp_path / "vit")
    for settings, message in (
        ({"method": "attendout:reward_on=noisy"}, "'noisy', which replaces tokens"),
        ({"max_length": 20}, "max_length is 20, and photos has images"),
        ({"model": media.save_wav2vec2(tmp_path / "wav2vec2")}, "has no image processor"),
    ):
        with pytest.raises(UserError, match=message):
            fine_tune(
                **{"model": vit, "train_file": photos, "output_dir": tmp_path / "out", "use_cpu": True, **settings}
            )
    assert not (tmp_path / "out").exists()
