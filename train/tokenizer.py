#!/usr/bin/env python3
"""tokenizer.py - train the byte-level BPE of the demo pair and encode the corpus with it.

  tokenizer.py [--work build/train] [--gguf models/demo/ratoon-demo-q8_0.gguf]

4096 tokens in all: the 256 bytes, 3834 merges, 6 special tokens at the end. Split pattern: Qwen2's (GGUF: model
"gpt2", pre "qwen2"). The corpus is encoded to one uint16 stream per class and split, documents separated by
<|endoftext|>; the trainers read nothing else. With --gguf the tokenizer is that of an exported file, so that another
model shares it whatever the machine's own corpus is.
"""
import argparse
import json
import pathlib
import random
import numpy as np

VOCAB = 4096
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>", "<think>", "</think>"]
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
           r"\s*[\r\n]+|\s+(?!\S)|\s+")
CHAT_TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                 "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
CLASSES = ("code", "prose", "chat", "arith", "templ")


def documents(path):
    with open(path, encoding="utf-8") as f:
        for line in f:
            yield json.loads(line)["text"]


def byte_level(model):
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
    tok = Tokenizer(model)
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERN), "isolated"),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    return tok


def from_gguf(path):
    from gguf import GGUFReader
    from tokenizers import models
    fields = GGUFReader(path).fields
    names, merges = (fields[f"tokenizer.ggml.{k}"].contents() for k in ("tokens", "merges"))
    plain = names[:VOCAB - len(SPECIAL)]
    if names[len(plain):] != SPECIAL:
        raise SystemExit(f"tokenizer.py: {path}: the last tokens are {names[len(plain):]}, expected {SPECIAL}")
    tok = byte_level(models.BPE({t: i for i, t in enumerate(plain)}, [tuple(m.split(" ")) for m in merges]))
    tok.add_special_tokens(SPECIAL)
    return tok


def train(corpus, sample_bytes):
    from tokenizers import models, pre_tokenizers, trainers
    tok = byte_level(models.BPE())

    def texts():
        rng = random.Random(0)
        for cls, share in (("code", 0.65), ("prose", 0.30), ("arith", 0.05)):
            docs = list(documents(corpus / f"{cls}.train.jsonl"))
            rng.shuffle(docs)
            left = sample_bytes * share
            for d in docs:
                if left <= 0:
                    break
                for s in SPECIAL:
                    d = d.replace(s, "\n")
                left -= len(d)
                yield d
    tok.train_from_iterator(texts(), trainers.BpeTrainer(vocab_size=VOCAB - len(SPECIAL), show_progress=False,
                                                         initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tok.add_special_tokens(SPECIAL)
    if tok.get_vocab_size() != VOCAB:
        raise SystemExit(f"tokenizer.py: {tok.get_vocab_size()} tokens, expected {VOCAB}; the corpus is too small")
    return tok


def load(path):
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(str(path))
    return tok


def special_ids(tok):
    return {s: tok.token_to_id(s) for s in SPECIAL}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/train"))
    ap.add_argument("--keep", action="store_true",
                    help="encode with the tokenizer that is there instead of training one")
    ap.add_argument("--gguf", type=pathlib.Path, help="take the tokenizer of this file instead of training one")
    ap.add_argument("--classes", default=",".join(CLASSES), help="which classes to encode")
    ap.add_argument("--sample-bytes", type=int, default=12_000_000)
    a = ap.parse_args()
    corpus, out, tokens = a.work / "corpus", a.work / "tokenizer.json", a.work / "tokens"
    if a.keep and out.exists():
        tok = load(out)
    else:
        tok = from_gguf(a.gguf) if a.gguf else train(corpus, a.sample_bytes)
        tok.save(str(out))
    tokens.mkdir(exist_ok=True)
    eot = tok.token_to_id(SPECIAL[0])
    for cls in a.classes.split(","):
        for split in ("train", "held"):
            ids, size = [], 0
            docs = list(documents(corpus / f"{cls}.{split}.jsonl"))
            random.Random(7).shuffle(docs)
            for at in range(0, len(docs), 512):
                for enc in tok.encode_batch(docs[at:at + 512]):
                    ids.append(np.array(enc.ids + [eot], np.uint16))
            size = sum(len(d.encode()) for d in docs)
            stream = np.concatenate(ids)
            stream.tofile(tokens / f"{cls}.{split}.u16")
            print(f"{cls}.{split}: {len(stream)} tokens, {size / len(stream):.2f} bytes a token")


if __name__ == "__main__":
    main()
