"""Packages of npm that only tests use: fetched once into the build folder, pinned by version and hash."""
import hashlib
import os
import shutil
import subprocess
import tarfile

from scratch import ROOT

FOLDER = os.path.join(ROOT, os.environ.get("BUILD", "build"), "npm")


def fetched(name, version, sha256, member):
    """(a file of the package, None), or (None, why not). Another content than the pinned one is an error."""
    path = os.path.join(FOLDER, "%s-%s.tgz" % (name, version))
    if not os.path.exists(path):
        npm = shutil.which("npm")
        if not npm:
            return None, "there is no npm to fetch %s with" % name
        os.makedirs(FOLDER, exist_ok=True)
        try:
            r = subprocess.run([npm, "pack", "--ignore-scripts", "%s@%s" % (name, version)], cwd=FOLDER, timeout=120,
                               capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            return None, "npm does not get %s: no answer" % name
        if r.returncode != 0 or not os.path.exists(path):
            return None, "npm does not get %s: %s" % (name, (r.stderr.strip().splitlines() or [""])[-1])
    with open(path, "rb") as f:
        found = hashlib.sha256(f.read()).hexdigest()
    if found != sha256:
        os.remove(path)
        raise AssertionError("%s %s has the SHA-256 %s, expected %s" % (name, version, found, sha256))
    with tarfile.open(path) as t:
        return t.extractfile("package/" + member).read().decode(), None
