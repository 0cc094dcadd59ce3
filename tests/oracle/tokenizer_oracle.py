#!/usr/bin/env python3
"""Ids of a text by the `tokenizers` package, from the vocabulary and merges of a GGUF file (pre-tokenizers of pretokens.py, no special
tokens, no normalisation); and whether ratoon says the same.

    tokenizer_oracle.py ids VOCAB.gguf TEXT                   one id per line, as `peer_tokenizer ids VOCAB.gguf TEXT`
    tokenizer_oracle.py check VOCAB.gguf PEER_TOKENIZER [N]   N random mixed texts of 1 MB (default 1) through both; exits with 1 on differences
    tokenizer_oracle.py train OUT.gguf                        a small vocabulary of Gemma 4's kind, for `check`
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata
import gguf
from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import Replace
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer
from pretokens import STAGES, TEXTS

GROUPS = {"llama3": "llama-bpe", "starcoder": "smollm", "refact": "smollm", "command-r": "smollm", "mpt": "gpt-2",
          "olmo": "gpt-2"}
SPACE = "\u2581"                                   # Gemma 4's spelling of a space


def open_tokenizer(path):
    fields = gguf.GGUFReader(path).fields
    strings = lambda k: [bytes(fields[k].parts[i]).decode() for i in fields[k].data]
    vocab = {t: i for i, t in enumerate(strings("tokenizer.ggml.tokens"))}
    merges = [tuple((m[0] + m[1:].replace(" ", "\0", 1)).split("\0")) for m in strings("tokenizer.ggml.merges")]
    if fields["tokenizer.ggml.model"].contents() == "gemma4":
        t = Tokenizer(BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        t.normalizer = Replace(" ", SPACE)
        t.pre_tokenizer = Split(Regex(STAGES["gemma4"][0]), "isolated")
        return t
    pre = fields["tokenizer.ggml.pre"].contents()
    group = GROUPS.get(pre, pre)
    t = Tokenizer(BPE(vocab, merges, ignore_merges=group == "llama-bpe"))
    stages = [Split(Regex(s), "isolated") for s in STAGES[group]]
    t.pre_tokenizer = Sequence(stages + [ByteLevel(add_prefix_space=False, use_regex=False)])
    return t


def train(path):
    """4,000 tokens: byte tokens, the characters and merges of some mixed texts, runs of line breaks."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    t = Tokenizer(BPE())
    t.normalizer = Replace(" ", SPACE)
    t.pre_tokenizer = Split(Regex(STAGES["gemma4"][0]), "isolated")
    t.train_from_iterator([mixed("train", 300_000)], BpeTrainer(vocab_size=3700, limit_alphabet=700, special_tokens=special,
                                                                  show_progress=False))
    model = json.loads(t.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    tokens += [x for x in ("\n" * n for n in range(2, 32)) if x not in model["vocab"]]
    runs = [("\n" * k, "\n" * (n - k)) for n in range(31, 1, -1) for k in range(n - 1, 0, -1)]
    types = [3 if x in special else 1 for x in tokens] + [6] * 256
    tokens += [f"<0x{b:02X}>" for b in range(256)]
    w = gguf.GGUFWriter(path, "gemma4")
    w.add_tokenizer_model("gemma4")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges([" ".join(m) for m in runs + model["merges"]])
    w.add_bos_token_id(2)
    w.add_eos_token_id(1)
    w.add_unk_token_id(3)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()
    print(f"{path}: {len(tokens)} tokens, {len(runs + model['merges'])} merges")


def ids(path, text):
    return open_tokenizer(path).encode(text, add_special_tokens=False).ids


# Characters on which Oniguruma (Unicode 16 and White_Space as \s) and the rules of spec/tokenizer.md section 4 differ
# deliberately or because of their versions.
def telling(c):
    return unicodedata.category(c) not in ("Cs", "Cn") and c not in "\u017f\u180e"


def mixed(seed, size=1_000_000):
    """Code and prose of this machine's Python, words of many scripts, emoji, white space and random characters."""
    rng = random.Random(seed)
    sources = [p.read_text(errors="ignore")
               for p in sorted(pathlib.Path(unicodedata.__file__ or "/").parent.glob("*.py"))[:40]]
    sources += [p.read_text(errors="ignore") for p in sorted(pathlib.Path(random.__file__).parent.glob("*.py"))[:60]]
    assigned = [c for c in map(chr, range(0x30000)) if telling(c)]
    blocks = [(0x400, 0x460), (0x370, 0x400), (0x5d0, 0x5eb), (0x620, 0x670), (0x900, 0x980), (0xe00, 0xe60),
              (0x1780, 0x17f0), (0x3040, 0x3100),
              (0x4e00, 0x9000), (0xac00, 0xd7a0), (0x1f300, 0x1f650), (0xc0, 0x250), (0x20, 0x7f)]
    parts, length = list(TEXTS), sum(len(t.encode()) for t in TEXTS)
    while length < size:
        kind = rng.randrange(6)
        if kind <= 1:
            source = rng.choice(sources)
            at = rng.randrange(max(1, len(source) - 800))
            part = source[at:at + rng.randrange(100, 800)]
        elif kind == 2:
            lo, hi = rng.choice(blocks)
            part = " ".join("".join(chr(rng.randrange(lo, hi)) for _ in range(rng.randrange(1, 12)))
                            for _ in range(rng.randrange(1, 20)))
        elif kind == 3:
            part = "".join(rng.choice(" \n\t\r  \n\u00a0\u2003\u3000ax.") for _ in range(rng.randrange(1, 40)))
        elif kind == 4:
            part = "".join(rng.choice("0123456789 .,-+eExX%'sStTdDlLvVrR\"") for _ in range(rng.randrange(1, 60)))
        else:
            part = "".join(rng.choice(assigned) for _ in range(rng.randrange(1, 60)))
        part = "".join(filter(telling, part))
        parts.append(part)
        length += len(part.encode())
    return "".join(parts)


def check(path, program, rounds):
    differences = total = 0
    for seed in range(rounds):
        text = mixed(seed)
        want = ids(path, text)
        with tempfile.NamedTemporaryFile() as f:
            f.write(text.encode())
            f.flush()
            got = [int(x) for x in subprocess.run([program, "ids", path, f.name], stdout=subprocess.PIPE,
                                                  check=True).stdout.split()]
        total += len(want)
        if got != want:
            differences += 1
            at = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
            print(f"{path}: text {seed}: token {at} of {len(want)}: {got[at:at + 4]}, expected {want[at:at + 4]}")
    print(f"{pathlib.Path(path).name}: {rounds} texts, {total} tokens, {differences} texts differ")
    return differences


def main(argv):
    if len(argv) == 4 and argv[1] == "ids":
        print("\n".join(map(str, ids(argv[2], pathlib.Path(argv[3]).read_bytes().decode()))))
        return 0
    if len(argv) == 3 and argv[1] == "train":
        train(argv[2])
        return 0
    if len(argv) in (4, 5) and argv[1] == "check":
        return 1 if check(argv[2], argv[3], int(argv[4]) if len(argv) == 5 else 1) else 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv))
