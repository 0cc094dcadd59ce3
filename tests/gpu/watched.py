"""watched.py - programs on the emulated GPU that watches accesses to memory (emu_watch.h), for the tests beside it."""
import os
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def library(build):
    return os.path.abspath(os.path.join(build, "libfake_cuda_watched.so"))


def run(build, words, variable, part):
    """What is written to the file that the variable names: lines; and what the program (of the tests) said if it failed,
    or if nothing was watched."""
    with tempfile.NamedTemporaryFile(mode="r") as out:
        env = dict(os.environ, RATOON_CUDA_DRIVER=library(build), RATOON_EMU_ORDER="0", RATOON_TEST_PART=part,
                   **{variable: out.name})
        done = subprocess.run([os.path.join(build, "tests", words[0]), *words[1:]], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        lines = out.read().splitlines()
    return lines, done.stdout.decode(errors="replace") if done.returncode or not lines else None


def places(build, addresses):
    """{address: [(file:line, the line)]} but for the emulator's own; of functions that were inlined there the innermost
    first."""
    text = subprocess.run(["addr2line", "-a", "-i", "-e", library(build)] +
                          ["%#x" % (int(a, 16) - 1) for a in addresses], stdout=subprocess.PIPE).stdout.decode()
    at, files = [], {}
    for line in text.splitlines():
        if line.startswith("0x"):
            at.append([])
            continue
        file, _, number = line.split(" ")[0].rpartition(":")
        if file not in files:
            path = pathlib.Path(file)
            files[file] = path.read_text().splitlines() if path.is_file() else []
        if number.isdigit() and 0 < int(number) <= len(files[file]) and "tests/gpu/emu" not in file:
            at[-1].append((file.replace(str(ROOT) + "/", "") + ":" + number, files[file][int(number) - 1].strip()))
    return dict(zip(addresses, at))
