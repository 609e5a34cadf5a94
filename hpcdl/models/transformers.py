"""Networks of language and vision that have published dimensions, as sizes of their layers.

They have no arithmetic: replays and predictions know their parameters, FLOP and activations, trainings refuse
them. A sample is a sequence, as long as ``shape`` says, or an image. FLOP are two for each multiply-add of a
product with weights, or of queries, keys and values (all pairs of tokens, as in Narayanan et al. 2021, without
what a causal mask saves). Backward takes twice the forward, without recomputation. Lookups, normalisation and
softmax count none. Activations are the outputs of a row alone.

A block is two rows of one group, attention and the rest, so that buckets are as fine as those of libraries.
"""

from __future__ import annotations

from typing import Final

from hpcdl.nn.geometry import Shape
from hpcdl.nn.layers.sized import SizedLayer


def bert_large(shape: Shape = (512,), classes: int = 30_522) -> list[SizedLayer]:
    """BERT-large for replays and predictions only: 24 blocks, sequences of 512 tokens.

    Devlin et al. 2019: width 1024, 512 positions, 2 segments, a vocabulary of 30,522. 335,141,888 parameters: the
    encoder with its pooler, as in Hugging Face's BertModel; the heads of its pre-training do not count.
    """
    width, tokens = 1024, shape[0]
    embeddings = (classes + 512 + 2) * width + 2 * width
    pooler = _row("pooler", width * (width + 1), width * width, 1, width)
    return [
        _lookup("embeddings", embeddings, tokens, width),
        *_blocks(24, tokens, width, 4 * width, biases=True, norm=2 * width),
        pooler,
    ]


def gpt2_xl(shape: Shape = (1024,), classes: int = 50_257) -> list[SizedLayer]:
    """GPT-2 XL for replays and predictions only: 48 blocks, sequences of 1024 tokens.

    Radford et al. 2019: width 1600, 1024 positions, a vocabulary of 50,257, whose embeddings are the weights of
    the last layer too: 1,557,611,200 parameters.
    """
    width, tokens = 1600, shape[0]
    return [
        _lookup("embeddings", (classes + 1024) * width, tokens, width),
        *_blocks(48, tokens, width, 4 * width, biases=True, norm=2 * width),
        _row("head", 2 * width, classes * width, tokens, tokens * classes),
    ]


def llama3_8b(shape: Shape = (8192,), classes: int = 128_256) -> list[SizedLayer]:
    """Llama 3 8B for replays and predictions only: 32 blocks, sequences of 8192 tokens.

    Grattafiori et al. 2024, table 3: width 4096, gated layers of 14,336, 32 heads that share 8 keys and values, a
    vocabulary of 128,256. 8,030,261,248 parameters.
    """
    width, tokens = 4096, shape[0]
    return [
        _lookup("embeddings", classes * width, tokens, width),
        *_blocks(32, tokens, width, 14_336, keys=width // 4, gated=True, norm=width),
        _row("head", (classes + 1) * width, classes * width, tokens, tokens * classes),
    ]


def vit_b16(shape: Shape = (224, 224, 3), classes: int = 1000) -> list[SizedLayer]:
    """ViT-B/16 for replays and predictions only: 12 blocks on patches of 16x16 pixels.

    Dosovitskiy et al. 2021, table 1: width 768, 197 tokens of a 224x224 image, one of them for the class.
    86,567,656 parameters.
    """
    width, (height, across, channels) = 768, shape
    tokens = 1 + (height // 16) * (across // 16)
    filters = 256 * channels * width
    return [
        _row("patches", filters + (tokens + 2) * width, filters, tokens - 1, tokens * width),
        *_blocks(12, tokens, width, 4 * width, biases=True, norm=2 * width),
        _row("head", 2 * width + (width + 1) * classes, width * classes, 1, classes),
    ]


def lstm_translator(shape: Shape = (25, 29), classes: int = 80_000) -> list[SizedLayer]:
    """Translator of two LSTMs of four layers, for replays and predictions only: sentences of 25 and 29 words.

    Sutskever et al. 2014: 1000 cells, 160,000 words of the source and 80,000 of the target, whose mean sentences
    follow from the paper's 12 M pairs of 304 M and 348 M words. 384,000,000 parameters. The weights of a cell are
    used once a word, so that a parameter of an LSTM stands for 25 or 29 times the arithmetic of one that is used
    once, and one of an embedding for none.
    """
    width, source, target = 1000, shape[0], shape[-1]
    rows = [_lookup("source_embeddings", 160_000 * width, source, width)]
    for side, words in (("encoder", source), ("decoder", target)):
        if side == "decoder":
            rows.append(_lookup("target_embeddings", classes * width, words, width))
        cell = 4 * width * (width + width)
        rows += [_row(f"{side}{number}", cell, cell, words, words * width) for number in range(1, 5)]
    return [*rows, _row("head", classes * width, classes * width, target, target * classes)]


def _lookup(name: str, parameters: int, tokens: int, width: int) -> SizedLayer:
    return _row(name, parameters, 0, tokens, tokens * width)


def _row(
    name: str,
    parameters: int,
    weights: int,
    tokens: int,
    activations: int,
    pairs: int = 0,
    group: str | None = None,
) -> SizedLayer:
    """Return a layer that multiplies each of ``tokens`` with ``weights``.

    ``activations``: elements of the output of all tokens. ``pairs``: multiply-adds without weights.
    """
    forward = 2 * (tokens * weights + pairs)
    return SizedLayer(name, parameters, activations, forward, 2 * forward, group=group)


def _blocks(
    count: int,
    tokens: int,
    width: int,
    hidden: int,
    *,
    norm: int,
    keys: int | None = None,
    biases: bool = False,
    gated: bool = False,
) -> list[SizedLayer]:
    """Return transformer blocks: attention with ``keys`` outputs of keys and of values, then the other products.

    ``norm``: parameters of each normalisation. ``gated``: the first of the other products has a second matrix.
    """
    keys = keys or width
    attention = 2 * width * (width + keys)
    feed_forward = (3 if gated else 2) * width * hidden
    rows = []
    for number in range(1, count + 1):
        group = f"block{number}"
        for kind, weights, outputs, pairs in (
            ("attention", attention, 2 * (width + keys), 2 * tokens * tokens * width),
            ("feed_forward", feed_forward, hidden + width, 0),
        ):
            parameters = weights + norm + outputs * biases
            rows.append(_row(f"{group}_{kind}", parameters, weights, tokens, tokens * width, pairs, group))
    return rows


OFFERS: Final = {offer.__name__: offer for offer in (bert_large, gpt2_xl, llama3_8b, lstm_translator, vit_b16)}
