"""A bare Debian to install packages in: debootstrap makes it once in build/packages, from the mirror that this machine
uses, with the packages in its cache that ours depend on. Each test works in a copy, and what it starts there has mounts
and process numbers of its own, so that nothing remains when it ends."""
import contextlib
import glob
import os
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build" / "packages"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROXIES = {k: v for k, v in os.environ.items() if k.lower() in ("http_proxy", "https_proxy", "no_proxy")}
MOUNT = 'root=$1; shift; mount -t proc proc "$root/proc" && exec "$@"'


class Unavailable(Exception):
    """Why there can be no bare root on this machine."""


def run(*args, **how):
    """(exit status, output of both kinds)."""
    p = subprocess.run([str(a) for a in args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, errors="replace", **how)
    return p.returncode, p.stdout


def must(*args, **how):
    status, out = run(*args, **how)
    if status != 0:
        raise Unavailable("%s: exit status %d: %s" % (args[0], status, " / ".join(out.strip().splitlines()[-3:])))
    return out


def codename():
    with open("/etc/os-release") as f:
        said = dict(re.findall(r'^(\w+)="?(.*?)"?$', f.read(), re.M))
    if said.get("ID") != "debian" or "VERSION_CODENAME" not in said:
        raise Unavailable("this is not Debian")
    return said["VERSION_CODENAME"]


def mirror(suite):
    """Where this machine has the suite from."""
    for name in glob.glob("/etc/apt/sources.list.d/*.sources"):
        for entry in re.split(r"\n\s*\n", pathlib.Path(name).read_text()):
            said = dict(re.findall(r"^([\w-]+):[ \t]*(.*)$", entry, re.M))
            if suite in said.get("Suites", "").split() and "main" in said.get("Components", "").split():
                return said["URIs"].split()[0]
    for name in ["/etc/apt/sources.list", *glob.glob("/etc/apt/sources.list.d/*.list")]:
        if os.path.exists(name):
            found = re.search(r"^deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+%s\s+.*\bmain\b" % suite,
                              pathlib.Path(name).read_text(), re.M)
            if found:
                return found[1]
    raise Unavailable("no mirror of %s in /etc/apt" % suite)


def isolated(root, command, cwd="/", user=None):
    """The command line that runs a command in root; its first process is number 1 there, as in a container."""
    inside = ["chroot", *(["--userspec=%s" % user] if user else []), str(root), "sh", "-c", 'cd "$0" && exec "$@"', cwd]
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "sh", "-c", MOUNT, "sh", str(root),
            *inside, *command]


def inside(root, *command, env=None, **how):
    """(exit status, output) of a command in root, as root, with the network of this machine."""
    return run(*isolated(root, command, **how), env={"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": "/root",
                                                    "DEBIAN_FRONTEND": "noninteractive", **PROXIES, **(env or {})})


def make(needed):
    """Makes the root, or finds it, and returns its folder. needed: gives the packages which it shall have in its cache,
    with all that they need; asked when the root is there. Raises Unavailable with the reason."""
    if os.getuid() != 0:
        raise Unavailable("only root can make a bare root")
    for tool in "debootstrap", "unshare", "chroot", "mount":
        if not shutil.which(tool):
            raise Unavailable("there is no %s (make setup-packages)" % tool)
    must("unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt")
    suite, root, complete = codename(), FOLDER / "root", FOLDER / "complete"
    what = "%s %s " % (suite, mirror(suite))
    if not complete.exists() or not complete.read_text().startswith(what):
        strap(suite, root)
    packages = needed()
    what += " ".join(packages)
    if complete.exists() and complete.read_text() == what:
        return root
    for args in (["update"], ["install", "-y", "--no-install-recommends", "--download-only", *packages]):
        status, out = inside(root, "apt-get", "-q", *args)
        if status != 0:
            raise Unavailable("apt-get %s in the bare root: %s" % (args[0], " / ".join(out.splitlines()[-3:])))
    complete.write_text(what)
    return root


def strap(suite, root):
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    must("debootstrap", "--variant=minbase", suite, root, mirror(suite))
    for used in (root / "var/cache/apt/archives").glob("*.deb"):
        used.unlink()
    (root / "etc/apt/apt.conf.d/80retries").write_text('Acquire::Retries "5";\n')
    (root / "etc/dpkg/dpkg.cfg.d/unsafe").write_text("force-unsafe-io\n")        # nothing here outlives a crash
    for name in "resolv.conf", "hosts":
        if os.path.exists("/etc/" + name):
            shutil.copyfile("/etc/" + name, root / "etc" / name)


@contextlib.contextmanager
def copy(root, name):
    """A copy of the root that is removed afterwards. Files in usr are links: packages replace them and write into
    none."""
    at = FOLDER / name
    shutil.rmtree(at, ignore_errors=True)
    at.mkdir()
    for part in root.iterdir():
        subprocess.run(["cp", "-al" if part.name == "usr" else "-a", str(part), str(at)], check=True)
    try:
        yield at
    finally:
        shutil.rmtree(at, ignore_errors=True)


class Process:
    """A command that goes on in root, with its output in a file. pid: its own, as this machine sees it."""

    def __init__(self, root, command, env, log, **how):
        self.log = pathlib.Path(log)
        with open(log, "wb") as f:
            self.p = subprocess.Popen(isolated(root, command, **how), env={"PATH": PATH, **env},
                                      stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT)

    @property
    def pid(self):
        for name in glob.glob("/proc/[0-9]*/stat"):
            with contextlib.suppress(OSError), open(name) as f:
                if int(f.read().rsplit(")", 1)[1].split()[1]) == self.p.pid:
                    return int(name.split("/")[2])
        return None

    def said(self):
        return self.log.read_text(errors="replace")

    def kill(self):
        if self.p.poll() is None:
            self.p.kill()                          # and with it all that it has started
        self.p.wait()
