"""Reads a Dockerfile and carries its stages out in bare roots, where there is no Docker: RUN, COPY, ARG, ENV, USER, WORKDIR,
and what a container is started with. An instruction that it does not know is an error."""
import json
import os
import re
import shlex
import shutil
import subprocess

import bare_root
from bare_root import ROOT


def instructions(text):
    """(keyword, rest) of each instruction, with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    found = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return [(keyword.upper(), rest.strip()) for keyword, rest in found]


def stages(text):
    """The stages, each a list of instructions that begins with its FROM."""
    out = []
    for keyword, rest in instructions(text):
        if keyword == "FROM":
            out.append([])
        out[-1].append((keyword, rest))
    return out


def words(rest):
    """A JSON list, or what a shell runs."""
    return json.loads(rest) if rest.startswith("[") else ["/bin/sh", "-c", rest]


class Stage:
    """The image that a stage makes in root. products: folders of earlier stages by (stage, folder)."""

    def __init__(self, root, lines, products):
        self.root, self.products = root, products
        self.env, self.cwd, self.user = {}, "/", None
        self.entry, self.command, self.health, self.port, self.volumes = [], [], None, None, []
        for keyword, rest in lines[1:]:
            getattr(self, "do_" + keyword.lower())(rest)

    def do_run(self, rest):
        mounts = []
        while rest.startswith("--"):
            option, rest = rest.split(None, 1)
            assert option.startswith("--mount="), option
            mounts.append(dict(x.split("=", 1) for x in option[len("--mount="):].split(",")))
        for m in mounts:
            assert m["type"] == "bind", m
            shutil.copytree(self.products[m["from"], m["source"]], self.inner(m["target"]))
        status, out = bare_root.inside(self.root, "/bin/sh", "-c", rest, env=self.env, cwd=self.cwd, user=self.user)
        for m in mounts:
            shutil.rmtree(self.inner(m["target"]))
        assert status == 0, "RUN %s: %d\n%s" % (rest, status, out[-3000:])

    def do_copy(self, rest):
        *sources, target = rest.split()
        at = self.inner(os.path.join(self.cwd, target))
        if sources == ["."]:
            files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True,
                                   stdout=subprocess.PIPE).stdout.decode().split("\0")
            sources = [f for f in files if f and (ROOT / f).exists()]
            targets = [os.path.join(at, f) for f in sources]
        else:
            targets = [os.path.join(at, os.path.basename(s)) if target.endswith("/") else at for s in sources]
        for source, to in zip(sources, targets):
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copy2(ROOT / source, to)

    def do_env(self, rest):
        self.env.update(x.split("=", 1) for x in shlex.split(rest))

    do_arg = do_env                                # with its default

    def do_workdir(self, rest):
        self.cwd = rest
        os.makedirs(self.inner(rest), exist_ok=True)

    def do_user(self, rest):
        self.user = rest

    def do_entrypoint(self, rest):
        self.entry = words(rest)

    def do_cmd(self, rest):
        self.command = words(rest)

    def do_healthcheck(self, rest):
        self.health = words(re.sub(r"^(--\S+\s+)*CMD\s+", "", rest))

    def do_expose(self, rest):
        self.port = int(rest)

    def do_volume(self, rest):
        self.volumes.append(rest)

    def do_stopsignal(self, rest):
        assert rest == "SIGTERM", rest

    def inner(self, path):
        return str(self.root) + "/" + path.lstrip("/")

    # ---- containers ----

    def settings(self, env):
        """The environment, as Docker makes it: HOME is the user's."""
        with open(self.inner("/etc/passwd")) as f:
            home = next(x.split(":")[5] for x in f if x.startswith((self.user or "root") + ":"))
        return {"PATH": bare_root.PATH, "HOME": home, **self.env, **env}

    def start(self, log, *command, env=None):
        """docker run -e ENV IMAGE COMMAND."""
        return bare_root.Process(self.root, [*self.entry, *(command or self.command)], self.settings(env or {}), log,
                                 cwd=self.cwd, user=self.user)

    def execute(self, *command, env=None):
        """docker exec: (exit status, output)."""
        return bare_root.run(*bare_root.isolated(self.root, command, cwd=self.cwd, user=self.user),
                             env=self.settings(env or {}))
