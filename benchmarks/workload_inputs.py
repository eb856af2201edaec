"""Real inputs of ``workloads.py``: text, rendered images, synthesised sound, chemical graphs. Never zeros.

Each function yields the cases of one model, the timed one first, with the preprocessing that the model's own
package does. Sound is synthesised, not recorded: ``speech`` has pitch, formants, syllables and pauses.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Cases = Iterator[dict[str, Any]]
Inputs = Callable[[Path], Cases]

THAI = (
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ "
    "ต่างมีเหตุผลและมโนธรรม และควรปฏิบัติต่อกันด้วยเจตนารมณ์แห่งภราดรภาพ",
    "ทุกคนมีสิทธิในการดำรงชีวิต เสรีภาพ และความมั่นคงแห่งตัวตน",
)
ARABIC = (
    "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق",
    "لكل فرد الحق في الحياة والحرية وسلامة شخصه",
    "وقد وهبوا عقلا وضميرا وعليهم أن يعامل بعضهم بعضا بروح الإخاء",
)
ENGLISH = (
    "All human beings are born free and equal",
    "in dignity and rights. They are endowed",
    "with reason and conscience and should act",
    "towards one another in a spirit of brotherhood.",
)


def magika(_: Path) -> Cases:
    """The first and last 1024 bytes of files of the standard library and of Python's licence text."""
    for source in (argparse.__file__, json.__file__, np.__file__):
        yield {"bytes": _ends_of(Path(source))}


def magika_folder(_: Path) -> Cases:
    """256 files of the standard library at once."""
    sources = sorted(Path(argparse.__file__).parent.rglob("*.py"))
    for start in (0, 256):
        chosen = sources[start : start + 256]
        yield {"bytes": np.concatenate([_ends_of(source) for source in chosen])}


def _ends_of(source: Path) -> np.ndarray:
    content, padding = source.read_bytes().strip(), [256] * 1024
    first, last = list(content[:1024]), list(content[-1024:])
    return np.array([(first + padding)[:1024] + (padding + last)[-1024:]], np.int32)


def detection(_: Path) -> Cases:
    """Pages with lines of text in several sizes, 640x480 and 320x320, scaled to [-1, 1]."""
    for width, height, seed in ((640, 480, 0), (320, 320, 1), (640, 480, 2)):
        yield {"x": _scaled(page(width, height, seed))}


def detection_pages(_: Path) -> Cases:
    """Eight pages of 960x704 at once."""
    for start in (10, 20):
        pages = [_scaled(page(960, 704, seed)) for seed in range(start, start + 8)]
        yield {"x": np.concatenate(pages)}


def recognition(_: Path) -> Cases:
    """Lines of text of 48x320, scaled to [-1, 1]."""
    for text in ENGLISH:
        yield {"x": _scaled(line(text, 320, 48))}


def recognition_page(_: Path) -> Cases:
    """The sixteen lines of a page at once."""
    for seed in (0, 1):
        yield {"x": np.concatenate([_scaled(line(text, 320, 48)) for text in sentences(16, seed)])}


def direction(_: Path) -> Cases:
    """Lines of text of 48x192, one upside down."""
    for number, text in enumerate(ENGLISH):
        image = line(text[:20], 192, 48)
        yield {"x": _scaled(np.ascontiguousarray(image[::-1, ::-1]) if number % 2 else image)}


def direction_pages(_: Path) -> Cases:
    """128 lines at once, every other one upside down."""
    for seed in (0, 1):
        images = [line(text[:20], 192, 48) for text in sentences(128, seed)]
        turned = [image[::-1, ::-1] if n % 2 else image for n, image in enumerate(images)]
        yield {"x": np.concatenate([_scaled(np.ascontiguousarray(image)) for image in turned])}


def captcha(_: Path) -> Cases:
    """Four characters over lines and specks, height 64, grey, in [0, 1]."""
    for number, text in enumerate(("k7Qm", "8hXw", "Zr4p", "n3Te")):
        image = specked(line(text, 160, 64), number)
        yield {"input1": (image.mean(axis=2, dtype=np.float32) / 255)[None, None]}


def captcha_detection(_: Path) -> Cases:
    """Pages with words, 416x416, in [0, 255]."""
    for seed in (3, 4):
        image = specked(page(416, 416, seed), seed).astype(np.float32)
        yield {"images": np.ascontiguousarray(image.transpose(2, 0, 1)[None])}


def voice(model: Path) -> Cases:
    """Windows of 512 samples at 16 kHz with 64 of context, and the state that the ones before left behind."""
    session = _session(model)
    state = np.zeros((2, 1, 128), np.float32)
    for number, window in enumerate(windows(speech(2.0, 16000, 0))):
        inputs = {"input": window[None], "state": state, "sr": np.array(16000, np.int64)}
        if number in (20, 35, 50):
            yield inputs
        state = session.run(["stateN"], inputs)[0]


def voice_sequence(model: Path) -> Cases:
    """Two seconds at 16 kHz, in windows, and the state that the seconds before left behind."""
    session = _session(model)
    zeros = np.zeros((1, 1, 128), np.float32)
    for seed in (0, 1):
        parts = np.stack(list(windows(speech(4.0, 16000, seed))))
        half = len(parts) // 2
        hn, cn = session.run(["hn", "cn"], {"input": parts[:half], "h": zeros, "c": zeros})
        yield {"input": parts[half:], "h": hn, "c": cn}


def music(_: Path) -> Cases:
    """Chords of decaying harmonics at 22050 Hz, 43844 samples."""
    for seed in (0, 1):
        yield {"serving_default_input_2:0": chords(seed)[None, :, None]}


def song(_: Path) -> Cases:
    """A minute of such chords at once, in 32 windows."""
    for start in (0, 100):
        parts = np.stack([chords(seed) for seed in range(start, start + 32)])
        yield {"serving_default_input_2:0": parts[:, :, None]}


def thai_windows(_: Path) -> Cases:
    """Characters of Thai text with 20 neighbours each, and their types, as deepcut takes them."""
    yield from map(_neighbours, THAI)


def thai_document(_: Path) -> Cases:
    """The same of 8192 characters at once: phrases in any order."""
    phrases = " ".join(THAI).split()
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        text = " ".join(" ".join(rng.permutation(phrases)) for _ in range(100))
        yield _neighbours(text[:8192])


def _neighbours(text: str) -> dict[str, Any]:
    letters, kinds = _thai_tables()
    padded = [" "] * 10 + list(text) + [" "] * 10
    rows = [
        padded[at + 1 : at + 11] + padded[at - 10 : at][::-1] + [padded[at]]
        for at in range(10, 10 + len(text))
    ]
    return {
        "input_1": np.array([[letters.get(c, 80) for c in row] for row in rows], float),
        "input_2": np.array([[kinds.get(c, 4) for c in row] for row in rows], float),
    }


def thai_characters(model: Path) -> Cases:
    """Indices of the characters of Thai text, as attacut takes them."""
    table = json.loads(model.with_name("attacut-c-characters.json").read_text(encoding="utf-8"))
    for text in THAI:
        yield {"input": np.array([[table.get(c, table["<UNK>"]) for c in text]], np.int64)}


def arabic(_: Path) -> Cases:
    """Indices of the letters of Arabic text without diacritics."""
    order = "ءآأؤإئابةتثجحخدذرزسشصضطظعغـفقكلمنهوي .,،؛:؟!()-\"'\n"
    for text in ARABIC:
        yield {"input_ids": np.array([[order.index(c) + 4 for c in text]], np.int64)}


def picture(name: str) -> Inputs:
    """A drawn scene of 224x224 with ImageNet's normalisation, as input ``name``."""

    def cases(_: Path) -> Cases:
        for seed in (0, 1):
            image = scene(224, seed).astype(np.float32) / 255
            image = (image - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
            yield {name: np.ascontiguousarray(image.transpose(2, 0, 1)[None])}

    return cases


# Heavy atoms as (atomic number, hydrogens), and bonds between them.
Molecule = tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]]
_RING = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5), (0, 6), (6, 7), (6, 8), (1, 9)]
SALICYLIC: Molecule = (
    [(6, 0), (6, 0), (6, 1), (6, 1), (6, 1), (6, 1), (6, 0), (8, 0), (8, 1), (8, 1)],
    _RING,
)
ANHYDRIDE: Molecule = (
    [(6, 3), (6, 0), (8, 0), (8, 0), (6, 0), (8, 0), (6, 3)],
    [(0, 1), (1, 2), (1, 3), (3, 4), (4, 5), (4, 6)],
)
ASPIRIN: Molecule = (
    [*SALICYLIC[0][:9], (8, 0), (6, 0), (8, 0), (6, 3)],
    [*_RING, (9, 10), (10, 11), (10, 12)],
)
ACETIC: Molecule = ([(6, 3), (6, 0), (8, 0), (8, 1)], [(0, 1), (1, 2), (1, 3)])
ETHANOL: Molecule = ([(6, 3), (6, 2), (8, 1)], [(0, 1), (1, 2)])
ACETATE: Molecule = (
    [(6, 3), (6, 0), (8, 0), (8, 0), (6, 2), (6, 3)],
    [(0, 1), (1, 2), (1, 3), (3, 4), (4, 5)],
)
WATER: Molecule = ([(8, 2)], [])


def reactions(_: Path) -> Cases:
    """Aspirin from salicylic acid and acetic anhydride; ethyl acetate from ethanol and acetic acid.

    Atomic number, neighbours and distances along bonds, each plus 2, one marker before them, and whether an
    atom is a reactant's (2) or a product's (3).
    """
    for reactants, products in (
        ((SALICYLIC, ANHYDRIDE), (ASPIRIN, ACETIC)),
        ((ETHANOL, ACETIC), (ACETATE, WATER)),
    ):
        molecules = (*reactants, *products)
        size = 1 + sum(len(atoms) for atoms, _ in molecules)
        atoms, neighbours, roles = (np.ones(size, np.int64) for _ in range(3))
        neighbours[0] = 0
        distances = np.zeros((size, size), np.int64)
        distances[0, :] = distances[:, 0] = 1
        at = 1
        for number, (heavy, bonds) in enumerate(molecules):
            end = at + len(heavy)
            degree = np.bincount(np.array(bonds, int).reshape(-1), minlength=len(heavy))
            atoms[at:end] = [element + 2 for element, _ in heavy]
            neighbours[at:end] = [d + h + 2 for d, (_, h) in zip(degree, heavy, strict=True)]
            roles[at:end] = 2 if number < len(reactants) else 3
            distances[at:end, at:end] = _bond_distances(len(heavy), bonds) + 2
            at = end
        yield {
            "atoms": atoms[None],
            "neighbors": neighbours[None],
            "distances": distances[None],
            "roles": roles[None],
        }


def _bond_distances(count: int, bonds: Sequence[tuple[int, int]]) -> np.ndarray:
    far = np.full((count, count), 10)
    np.fill_diagonal(far, 0)
    for a, b in bonds:
        far[a, b] = far[b, a] = 1
    for middle in range(count):
        far = np.minimum(far, far[:, middle : middle + 1] + far[middle : middle + 1, :])
    return far


def speech(seconds: float, rate: int, seed: int) -> np.ndarray:
    """Speech-like sound in [-1, 1]: a gliding pitch, two formants a syllable, pauses between words, noise."""
    rng = np.random.default_rng(seed)
    time = np.arange(int(seconds * rate)) / rate
    pitch = 120 + 25 * np.sin(2 * np.pi * 0.7 * time) + 8 * np.sin(2 * np.pi * 2.3 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    syllable = (time * 4).astype(int)
    vowels = np.array([(730, 1090), (270, 2290), (300, 870), (530, 1840), (570, 840)], float)
    formants = vowels[rng.integers(0, len(vowels), syllable.max() + 1)][syllable]
    spoken = rng.random(syllable.max() + 1) > 0.25
    loud = np.sin(np.pi * ((time * 4) % 1)) ** 2 * spoken[syllable]
    sound = np.zeros_like(time)
    for harmonic in range(1, 26):
        near = np.exp(-(((harmonic * pitch)[:, None] - formants) ** 2) / (2 * 150**2))
        sound += (near @ [1.0, 0.6] + 0.02 / harmonic) * np.sin(harmonic * phase)
    sound = 0.5 * loud * sound / np.abs(sound).max()
    return np.asarray(sound + 2e-3 * rng.standard_normal(len(time)), np.float32)


def chords(seed: int) -> np.ndarray:
    """Two seconds of chords of decaying harmonics at 22050 Hz, in [-0.5, 0.5]; 43844 samples."""
    rng = np.random.default_rng(seed)
    time = np.arange(43844) / 22050
    sound = np.zeros_like(time)
    for start in np.arange(0.0, 1.9, 0.25):
        after = np.clip(time - start, 0, None)
        for note in rng.choice([48, 52, 55, 59, 60, 64, 67, 72], 3, replace=False):
            frequency = 440 * 2 ** ((note - 69) / 12)
            for harmonic in range(1, 7):
                wave = np.sin(2 * np.pi * frequency * harmonic * after) / harmonic
                sound += wave * np.exp(-4 * after) * (time >= start)
    sound += 1e-3 * rng.standard_normal(len(time))
    loudest: float = np.abs(sound).max()
    return 0.5 * sound / loudest


def sentences(count: int, seed: int) -> list[str]:
    """Words of the English text in any order, three to six a line."""
    rng, words = np.random.default_rng(seed), " ".join(ENGLISH).split()
    return [" ".join(rng.permutation(words)[: rng.integers(3, 7)]) for _ in range(count)]


def windows(sound: np.ndarray) -> Iterator[np.ndarray]:
    """Windows of 512 samples, each with the 64 before it."""
    for start in range(64, len(sound) - 512, 512):
        yield sound[start - 64 : start + 512]


def line(text: str, width: int, height: int) -> np.ndarray:
    """Dark text on light ground, as large as fits; [height, width, 3] of uint8."""
    from PIL import Image, ImageDraw, ImageFont

    size = height * 0.8
    while ImageFont.load_default(size).getlength(text) > width * 0.95:
        size *= 0.95
    image = Image.new("RGB", (width, height), (238, 236, 230))
    ImageDraw.Draw(image).text(
        (width * 0.02, height / 2), text, (30, 30, 45), ImageFont.load_default(size), anchor="lm"
    )
    return np.asarray(image)


def page(width: int, height: int, seed: int) -> np.ndarray:
    """Lines of text in several sizes and colours; [height, width, 3] of uint8."""
    from PIL import Image, ImageDraw, ImageFont

    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (width, height), (246, 244, 240))
    draw, y = ImageDraw.Draw(image), 12.0
    while y < height - 40:
        size = int(rng.integers(14, 38))
        text = " ".join(rng.permutation(" ".join(ENGLISH).split())[:4])
        colour = tuple(int(c) for c in rng.integers(0, 120, 3))
        draw.text((int(rng.integers(5, 60)), y), text, colour, ImageFont.load_default(size))
        y += size * 1.7
    return np.asarray(image)


def specked(image: np.ndarray, seed: int) -> np.ndarray:
    """The image under strokes and noise."""
    from PIL import Image, ImageDraw

    rng = np.random.default_rng(seed)
    drawn = Image.fromarray(image)
    height, width = image.shape[:2]
    for _ in range(4):
        ends = [tuple(int(v) for v in rng.integers(0, (width, height))) for _ in range(2)]
        ImageDraw.Draw(drawn).line(ends, tuple(int(c) for c in rng.integers(60, 190, 3)), 2)
    noisy = np.asarray(drawn) + rng.normal(0, 8, image.shape)
    return noisy.clip(0, 255).astype(np.uint8)


def scene(size: int, seed: int) -> np.ndarray:
    """A drawn landscape: sky, hills, a sun, noise; [size, size, 3] of uint8."""
    from PIL import Image, ImageDraw

    rng = np.random.default_rng(seed)
    rows = np.linspace(0, 1, size)[:, None, None]
    sky = (1 - rows) * np.array([90, 150, 230]) + rows * np.array([240, 220, 190])
    drawn = Image.fromarray(np.broadcast_to(sky, (size, size, 3)).astype(np.uint8))
    draw = ImageDraw.Draw(drawn)
    draw.ellipse((size * 0.6, size * 0.1, size * 0.8, size * 0.3), (255, 230, 120))
    for depth in range(3):
        heights = size * (0.5 + 0.15 * depth) + 12 * np.cumsum(rng.standard_normal(9))
        ridge = [(size * i / 8, float(h)) for i, h in enumerate(heights)]
        draw.polygon([(0, size), *ridge, (size, size)], (40, 120 - 30 * depth, 50))
    return (np.asarray(drawn) + rng.normal(0, 6, (size, size, 3))).clip(0, 255).astype(np.uint8)


def _scaled(image: np.ndarray) -> np.ndarray:
    values = (image.astype(np.float32) / 255 - 0.5) / 0.5
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


def _session(model: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])


def _thai_tables() -> tuple[dict[str, int], dict[str, int]]:
    """Indices of characters and of their types, in the order of deepcut's tables."""
    latin = "\n !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_abcdefghijklmno"
    left_out = {*range(0x0E3B, 0x0E40), 0x0E26, 0x0E4E, 0x0E4F}
    thai = [chr(code) for code in range(0x0E01, 0x0E5A) if code not in left_out]
    # Index 80 stands for every other character.
    order = [*latin, "other", *"pqrstuvwxyz}~", *thai, "‘", "’", "\ufeff"]
    kinds = {
        "กขฃคฆงจชซญฎฏฐฑฒณดตถทธนบปพฟภมยรลวศษสฬอ": 1,
        "ฅฉผฟฌหฮ": 3,
        "ะาำิีืึุู": 10,
        "เแโใไ": 11,
        "่้๊๋": 9,
        "์ๆฯ.": 7,
        "0123456789๑๒๓๔๕๖๗๘๙": 2,
        "\"‘’'": 6,
        " ": 5,
    }
    return (
        {letter: index for index, letter in enumerate(order)},
        {letter: kind for letters, kind in kinds.items() for letter in letters},
    )
