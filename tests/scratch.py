"""What tests of whole programs share: where the program and the demo pair are, a folder of their own that goes when they end, files in it."""
import atexit
import os
import shutil
import struct
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RATOON = os.path.abspath(os.environ.get("RATOON", os.path.join(ROOT, "ratoon")))
DEMO = os.path.join(ROOT, "models", "demo", "ratoon-demo-q8_0.gguf")
TMP = tempfile.mkdtemp(prefix="ratoon-test-")


def remove(owner=os.getpid()):
    if os.getpid() == owner:
        shutil.rmtree(TMP, ignore_errors=True)


atexit.register(remove)


def path(name):
    return os.path.join(TMP, name)


def write(name, data):
    """The path of a new file in the folder."""
    with open(path(name), "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())
    return path(name)


def with_template(model, name, template):
    """A copy of a GGUF file with another chat template, longer by a multiple of the file's alignment, so that nothing else moves against it; None:
    without it, the key renamed."""
    with open(model, "rb") as f:
        data = f.read()
    key = b"tokenizer.chat_template"
    if template is None:
        return write(name, data.replace(key, b"tokenizer.chat_elsewhere"[:len(key)]))
    at = data.index(key) + len(key) + 4
    n = struct.unpack_from("<Q", data, at)[0]
    text = template.encode()
    text += b"{#" + b" " * ((n - len(text) - 4) % 32) + b"#}"
    return write(name, data[:at] + struct.pack("<Q", len(text)) + text + data[at + 8 + n:])
