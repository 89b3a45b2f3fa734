"""Tiny models for images and sounds, and files that they can learn to tell apart."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from PIL import Image

COLOURS = {"green": (30, 200, 40), "red": (210, 40, 30)}
TONES = {"high": 1800, "low": 300}  # Hz
RATE = 4000

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def save_vit(folder: Path) -> Path:
    """A tiny ViT for images of 16 × 16 pixels with its image processor."""
    torch.manual_seed(0)
    config = hf.ViTConfig(**SMALL, image_size=16, patch_size=4, hidden_dropout_prob=0.1)
    hf.ViTModel(config).save_pretrained(folder)
    hf.ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


def save_wav2vec2(folder: Path) -> Path:
    """A tiny wav2vec2 for sounds of 4,000 samples in a second with its feature extractor."""
    torch.manual_seed(0)
    hf.Wav2Vec2Model(wav2vec2_config()).save_pretrained(folder)
    hf.Wav2Vec2FeatureExtractor(sampling_rate=RATE, return_attention_mask=True).save_pretrained(folder)
    return folder


def save_whisper(folder: Path) -> Path:
    """A tiny Whisper for sounds of one second with its feature extractor."""
    torch.manual_seed(0)
    hf.WhisperForAudioClassification(whisper_config()).save_pretrained(folder)
    hf.WhisperFeatureExtractor(
        feature_size=8, sampling_rate=RATE, hop_length=40, n_fft=80, chunk_length=1
    ).save_pretrained(folder)
    return folder


def wav2vec2_config(**fields: Any) -> Any:
    return hf.Wav2Vec2Config(
        **SMALL, conv_dim=(16, 16), conv_kernel=(8, 4), conv_stride=(4, 4), num_feat_extract_layers=2,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, classifier_proj_size=16, mask_time_length=2,
        **fields,
    )  # fmt: skip


def whisper_config() -> Any:
    return hf.WhisperConfig(
        d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=48, decoder_layers=1,
        decoder_attention_heads=4, decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=50, vocab_size=60,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, classifier_proj_size=16, dropout=0.1,
    )  # fmt: skip


def write_images(folder: Path, count: int, seed: int = 0) -> Path:
    """A folder with `count` noisy images of each colour, one sub-folder for each; half of them JPEG."""
    draws = np.random.default_rng(seed)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = np.clip(np.array(colour) + draws.normal(0, 40, (20, 24, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.{'png' if i % 2 else 'jpg'}")
    return folder


def write_tone(path: Path, frequency: float, seconds: float = 0.4, rate: int = RATE, seed: int = 0) -> Path:
    """A .wav file with a tone and some noise."""
    draws = np.random.default_rng(seed)
    time = np.arange(int(seconds * rate)) / rate
    sound = 0.5 * np.sin(2 * np.pi * frequency * time + draws.uniform(0, 6)) + draws.normal(0, 0.05, len(time))
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes())
    return path


def write_tones(folder: Path, count: int) -> Path:
    """A table of `count` tones of each pitch, of different lengths, beside the folder of the files."""
    rows = ["clip,pitch"]
    for name, frequency in TONES.items():
        for i in range(count):
            path = Path("clips", f"{name}{i}.wav")
            write_tone(folder / path, frequency * (1 + 0.01 * i), 0.2 + 0.02 * (i % 5), seed=i)
            rows.append(f"{path},{name}")
    table = folder / "tones.csv"
    table.write_text("\n".join(rows) + "\n")
    return table
