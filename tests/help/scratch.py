"""What tests of whole programs share: the places of the program and the demo pair, a temporary folder that is removed
at the end, files in it, what a running program is doing."""
import atexit
import os
import re
import shutil
import signal
import struct
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RATOON = os.path.abspath(os.environ.get("RATOON", os.path.join(ROOT, "ratoon")))
DEMO = os.path.join(ROOT, "models", "demo", "ratoon-demo-q8_0.gguf")
for name in [n for n in os.environ if n.startswith("RATOON_")]:  # whoever runs the tests may have options there
    del os.environ[name]
TMP = tempfile.mkdtemp(prefix="ratoon-test-")
os.environ["XDG_CACHE_HOME"] = os.path.join(TMP, "cache")     # what programs under test learn stays here
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1,localhost"     # all servers are on this machine


def remove(owner=os.getpid()):
    if os.getpid() == owner:
        shutil.rmtree(TMP, ignore_errors=True)


atexit.register(remove)


def path(name):
    return os.path.join(TMP, name)


def write(name, data):
    """Writes a new file in the folder and returns its path."""
    with open(path(name), "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())
    return path(name)


def with_numbers(model, to, numbers):
    """A copy of a GGUF file with more keys (floats as f32, whole numbers as u32)."""
    with open(model, "rb") as f:
        data = f.read()
    keys = b""
    for name, value in numbers.items():
        key = name.encode()
        keys += struct.pack("<Q", len(key)) + key
        keys += struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)
    n = struct.unpack_from("<Q", data, 16)[0]
    pad = b"test.padding"                          # a text that fills up to a multiple of the file's alignment
    pad = struct.pack("<Q", len(pad)) + pad + struct.pack("<I", 8)
    fill = -(len(keys) + len(pad) + 8) % 32
    keys += pad + struct.pack("<Q", fill) + b" " * fill
    with open(to, "wb") as f:
        f.write(data[:16] + struct.pack("<Q", n + len(numbers) + 1) + keys + data[24:])
    return to


def with_keys(model, to, sampling):
    """A copy of a GGUF file with these keys of general.sampling."""
    return with_numbers(model, to, {"general.sampling." + name: value for name, value in sampling.items()})


def with_template(model, name, template):
    """A copy of a GGUF file with another chat template, longer by a multiple of the file's alignment, so that the
    alignment of all that follows stays the same; None: no template, the key is renamed."""
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


def asleep(pid):
    """All threads of a process wait for something; one that has work, or was just woken, does not."""
    states = set()
    for task in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/stat" % (pid, task)) as f:
            states.add(f.read().rsplit(")", 1)[1].split()[0])
    return states == {"S"}


def interrupt(p, seconds=60):
    """Sends SIGINT and waits until it has arrived: a second one would be the same signal before that."""
    p.send_signal(signal.SIGINT)
    end = time.monotonic() + seconds
    while p.poll() is None and time.monotonic() < end:
        with open("/proc/%d/status" % p.pid) as f:
            pending = re.findall(r"^(?:SigPnd|ShdPnd):\s*([0-9a-f]+)", f.read(), re.M)
        if not any(int(x, 16) & 1 << signal.SIGINT - 1 for x in pending):
            return
        time.sleep(0.01)
