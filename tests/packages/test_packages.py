#!/usr/bin/env python3
"""The packages as users get them: `make deb` and `make tarball`, each installed and used in a bare Debian, and the
Dockerfile carried out there.

    python3 tests/packages/test_packages.py [-v] [TestName.test_name ...]

Makes both, and a bare root in build/packages (bare_root.py). Where a tool, the rights of root or the network is
missing, it says so and counts as skipped. BUILD_STAGE=1: the Dockerfile's first stage is carried out as well, which
installs a compiler and takes minutes; otherwise the packages that were made here stand in for it. The last line is
'N passed, N failed'."""
import glob
import http.client
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "help"))
import bare_root
import dockerfile
import report
from scratch import path

ROOT, BUILD = bare_root.ROOT, bare_root.ROOT / "build"
VERSION = (ROOT / "VERSION").read_text().strip()
SLOW = float(os.environ.get("SLOW", "1"))
TEXT = ["-p", "def add(a, b):", "-n", "8", "-q"]           # what the demo pair is asked to continue
made = {}                                                  # "deb", "tarball": the files, or why there are none
root, no_root = None, None                                 # the bare root, or why there is none


def make(target, tools):
    """Starts `make TARGET`; returns what waits for it."""
    missing = [t for t in tools if not shutil.which(t)]
    if missing:
        made[target] = "there is no %s (make setup-packages)" % missing[0]
        return lambda: None
    log = open(path(target + ".log"), "wb")
    p = subprocess.Popen(["make", "-C", str(ROOT), target], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait():
        status = p.wait()
        log.close()
        with open(log.name, errors="replace") as f:
            assert status == 0, "make %s: %d\n%s" % (target, status, f.read()[-5000:])
        made[target] = sorted(glob.glob(str(BUILD / ("*.deb" if target == "deb" else "ratoon-*.tar.gz"))))
    return wait


def setUpModule():
    """The root is made while the packages are."""
    global root, no_root
    waits = [make("deb", ["dpkg-buildpackage", "dh"]), make("tarball", ["dpkg-query"])]

    def needed():
        for w in waits:
            w()
        waits.clear()
        return dependencies()
    try:
        root = bare_root.make(needed)
    except bare_root.Unavailable as e:
        no_root = str(e)
        print("no bare root: %s" % e, flush=True)
    if waits:
        needed()


def dependencies():
    """What our packages need besides each other and the essential ones."""
    names = {"ca-certificates"}
    for deb in made["deb"] if isinstance(made["deb"], list) else []:
        said = bare_root.must("dpkg-deb", "-f", deb, "Depends")
        names |= {re.split(r"[ (|]", d.strip())[0] for d in said.split(",")}
    return sorted(n for n in names if "ratoon" not in n and not n.endswith("-dev"))


def debs(*names):
    return [d for d in made["deb"] if os.path.basename(d).split("_")[0] in names]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ask(port, route, address="127.0.0.1", **headers):
    """(status, text)."""
    c = http.client.HTTPConnection(address, port, timeout=60 * SLOW)
    try:
        c.request("GET", route, headers=headers)
        answer = c.getresponse()
        return answer.status, answer.read().decode()
    finally:
        c.close()


def until(test, process, seconds=120):
    """Waits until the test is true; a process that has ended, or all of that time, is an error."""
    end = time.monotonic() + seconds * SLOW
    while not test():
        assert process.p.poll() is None, "it has ended:\n" + process.said()
        assert time.monotonic() < end, "it did not happen:\n" + process.said()
        time.sleep(0.2)


class Base(unittest.TestCase):
    needs_root = True
    needs = "deb"

    @classmethod
    def setUpClass(cls):
        if not isinstance(made[cls.needs], list):
            raise unittest.SkipTest(made[cls.needs])
        if cls.needs_root and no_root:
            raise unittest.SkipTest(no_root)
        if cls.needs_root:
            cls.at = cls.enterClassContext(bare_root.copy(root, cls.__name__.lower()))

    def good(self, *command, **how):
        """The output of a command in the root."""
        status, out = bare_root.inside(self.at, *command, **how)
        self.assertEqual(status, 0, "%s\n%s" % (" ".join(command), out[-3000:]))
        return out

    def start(self, *command, **how):
        p = bare_root.Process(self.at, command, how.pop("env", {}), path("process.log"), **how)
        self.addCleanup(p.kill)
        return p

    def end(self, p):
        """SIGTERM to the process itself; it says that it ended well."""
        os.kill(p.pid, 15)
        self.assertEqual(p.p.wait(60 * SLOW), 0, p.said())

    def files(self):
        """What lies in the root and bears our name, without the logs of apt and dpkg."""
        out = subprocess.run(["find", str(self.at), "-xdev", "-name", "*ratoon*", "-not", "-path", "*/var/log/*",
                              "-printf", "%P\n"], check=True, stdout=subprocess.PIPE, text=True).stdout
        return set(out.split())


class Deb(Base):
    needs_root = False

    def test_lintian(self):
        if not shutil.which("lintian"):
            self.skipTest("there is no lintian (make setup-packages)")
        status, out = bare_root.run("lintian", "--fail-on=error,warning", *made["deb"])
        self.assertEqual(status, 0, out)
        self.assertNotRegex(out, r"(?m)^[EW]: ")

    def test_all_there(self):
        names = sorted(os.path.basename(d).rsplit("_", 1)[0] for d in made["deb"])
        self.assertEqual(names, sorted("%s_%s" % (n, VERSION) for n in ("ratoon", "libratoon0", "libratoon-dev")))

    def test_versions_agree(self):
        """A changelog that has stayed behind is named before anything is built."""
        p = subprocess.run(["make", "-s", "-C", str(ROOT), "deb", "VERSION=99.1"], stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, env={**os.environ, "MAKEFLAGS": ""})
        self.assertNotEqual(p.returncode, 0)
        self.assertIn("debian/changelog: the version is %s, expected that of the file VERSION, 99.1" % VERSION,
                      p.stdout)


class Installed(Base):
    """One root through the life of a package, in the order of the names."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.makedirs(cls.at / "packages")
        for d in debs("ratoon", "libratoon0"):
            shutil.copy(d, cls.at / "packages")

    def test_1_install(self):
        self.good("sh", "-c", "apt-get install -y --no-install-recommends /packages/*.deb")
        self.assertEqual(self.good("ratoon", "version"), "ratoon %s\n" % VERSION)

    def test_2_runs(self):
        out = self.good("ratoon", "run", *TEXT, user="nobody")
        self.assertTrue(out.strip())
        self.assertEqual(self.good("ratoon", "run", "-d", "none", "--ngram", "off", *TEXT, user="nobody"), out)

    def test_3_its_files(self):
        for name in ("usr/share/man/man1/ratoon.1.gz", "usr/share/bash-completion/completions/ratoon",
                     "usr/share/zsh/vendor-completions/_ratoon", "usr/share/fish/vendor_completions.d/ratoon.fish",
                     "usr/share/ratoon/drafters.json", "usr/share/doc/ratoon/copyright",
                     "usr/share/doc/ratoon/doc/serving.md"):
            self.assertTrue((self.at / name).is_file(), name)
        self.assertEqual(self.good("dpkg", "--verify", "ratoon", "libratoon0"), "")

    def test_4_library(self):
        """A program that was linked with what libratoon-dev has runs with libratoon0 alone."""
        into = path("dev")
        for d in debs("libratoon-dev", "libratoon0"):
            subprocess.run(["dpkg-deb", "-x", d, into], check=True)
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "ratoon"], check=True, stdout=subprocess.PIPE,
                               text=True, env={**os.environ, "PKG_CONFIG_PATH": "", "PKG_CONFIG_SYSROOT_DIR": into,
                                               "PKG_CONFIG_LIBDIR": glob.glob(into + "/usr/lib/*/pkgconfig")[0]}).stdout
        subprocess.run(["cc", str(ROOT / "examples/hello.c"), "-o", str(self.at / "hello"),
                        *(flags.split() or ["-I%s/usr/include" % into, "-lratoon"]),
                        "-L" + os.path.dirname(glob.glob(into + "/usr/lib/*/libratoon.so")[0])], check=True)
        demo = "/usr/share/ratoon/models/demo/"
        out = self.good("/hello", demo + "ratoon-demo-q8_0.gguf", demo + "dflash-ratoon-demo-bf16.gguf",
                        "def add(a, b):")
        self.assertIn("return", out)

    def test_5_service(self):
        """The unit is there, is not enabled, and what it starts becomes ready and ends well."""
        unit = self.at / "lib/systemd/system/ratoon.service"
        text = unit.read_text()
        self.assertNotIn("@PREFIX@", text)
        self.assertEqual(glob.glob(str(self.at / "etc/systemd/system/*/ratoon.service")), [])
        port = str(free_port())
        state = self.at / "var/lib/ratoon"
        for folder in state, state / "cache", state / "models":
            folder.mkdir()
            os.chown(folder, 65534, 65534)
        command = re.search(r"^ExecStart=(.*)$", text, re.M)[1].replace("%S", "/var/lib").split()
        self.assertEqual(command.pop(), "$RATOON_ARGS")
        given = dict(x.split("=", 1) for x in re.search(r"^Environment=(XDG.*)$", text, re.M)[1].split())
        env = {k: v.replace("%S", "/var/lib") for k, v in given.items()}
        (self.at / "etc/ratoon").mkdir()
        (self.at / "etc/ratoon/config").write_text("[serve]\nport = %s\n" % port)
        p = self.start(*command, env=env, user="nobody", cwd="/var/lib/ratoon")
        ready = lambda: bare_root.inside(self.at, "ratoon", "health", env=env)[0] == 0
        until(ready, p)
        self.assertEqual(ask(int(port), "/v1/models")[0], 200)
        self.end(p)
        status, out = bare_root.inside(self.at, "ratoon", "health", env=env)
        self.assertEqual((status, out.count("\n")), (1, 1), out)

    def test_6_again(self):
        self.good("sh", "-c", "apt-get install -y --reinstall --no-install-recommends /packages/*.deb")
        self.good("ratoon", "version")

    def test_7_purge(self):
        self.good("apt-get", "purge", "-y", "ratoon", "libratoon0")
        left = {f for f in self.files() if not f.startswith(("packages/", "var/lib/ratoon", "etc/ratoon"))}
        self.assertEqual(left, set(), "only what the administrator and the server have made is left")


class Tarball(Base):
    needs = "tarball"
    PLACE = "/opt/some where/tools"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.makedirs(str(cls.at) + cls.PLACE)
        subprocess.run(["tar", "-xzf", made["tarball"][0], "-C", str(cls.at) + cls.PLACE], check=True)
        cls.name = os.path.basename(made["tarball"][0])[:-len(".tar.gz")]
        cls.folder = cls.PLACE + "/" + cls.name

    def test_runs_anywhere(self):
        """Unpacked in a folder, called by a link, moved: on a system that has none of the libraries."""
        found = self.good("sh", "-c", "ls /usr/lib/*-linux-gnu /lib/*-linux-gnu")
        for library in "libmicrohttpd", "libcurl", "libjansson", "libutf8proc", "libedit":
            self.assertNotIn(library, found)
        program = self.folder + "/bin/ratoon"
        self.assertEqual(self.good(program, "version"), "ratoon %s\n" % VERSION)
        text = self.good(program, "run", *TEXT, user="nobody")
        self.assertTrue(text.strip())
        os.symlink(program, str(self.at) + "/usr/local/bin/ratoon")
        self.assertEqual(self.good("ratoon", "run", *TEXT, user="nobody"), text)
        os.rename(str(self.at) + self.folder, str(self.at) + "/srv/moved")
        try:
            self.assertEqual(self.good("/srv/moved/bin/ratoon", "run", *TEXT), text)
        finally:
            os.rename(str(self.at) + "/srv/moved", str(self.at) + self.folder)
            os.remove(str(self.at) + "/usr/local/bin/ratoon")

    def test_nothing_of_the_system_but_glibc(self):
        """Every library that is loaded lies in the folder, or belongs to glibc."""
        out = self.good("sh", "-c", "LD_TRACE_LOADED_OBJECTS=1 \"$1\"", "sh", self.folder + "/bin/ratoon")
        loaded = re.findall(r"=> (/\S.*) \(0x", out)
        self.assertGreater(len(loaded), 10, out)
        others = {os.path.basename(p) for p in loaded if not os.path.realpath(p).startswith(self.folder)
                  and "/lib/ratoon/" not in p}
        self.assertLessEqual(others, {"libc.so.6", "libm.so.6", "libresolv.so.2", "libpthread.so.0", "libdl.so.2",
                                      "librt.so.1"}, out)

    def test_server(self):
        """With its page, and with TLS: the certificates that are trusted are found where other systems keep them."""
        if not shutil.which("openssl"):
            self.skipTest("no openssl to make a certificate")
        port = free_port()
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(self.at / "k.pem"),
                        "-out", str(self.at / "c.pem"), "-days", "2", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=DNS:localhost"], check=True, stderr=subprocess.DEVNULL)
        program = self.folder + "/bin/ratoon"
        p = self.start(program, "serve", "--host", "localhost", "--port", str(port), "--tls-cert", "/c.pem",
                       "--tls-key", "/k.pem")
        health = lambda *a: bare_root.inside(self.at, program, "health", *a)
        until(lambda: health("--port", str(port), "--host", "localhost", "--tls-cert", "/c.pem")[0] == 0, p)
        url = "https://localhost:%d" % port
        status, out = health(url)
        self.assertEqual(status, 1, out)
        self.assertIn("certificate", out.lower())
        os.makedirs(self.at / "etc/pki/tls/certs")
        shutil.copy(self.at / "c.pem", self.at / "etc/pki/tls/certs/ca-bundle.crt")
        self.assertEqual(health(url), (0, "ready\n"))
        trusting = ssl.create_default_context(cafile=str(self.at / "c.pem"))
        c = http.client.HTTPSConnection("localhost", port, context=trusting, timeout=60 * SLOW)
        c.request("GET", "/")
        self.assertIn("<title>", c.getresponse().read().decode())
        c.close()
        self.end(p)

    def test_its_files(self):
        folder = str(self.at) + self.folder
        for name in ("share/man/man1/ratoon.1", "share/bash-completion/completions/ratoon",
                     "share/zsh/site-functions/_ratoon", "share/fish/vendor_completions.d/ratoon.fish",
                     "share/ratoon/drafters.json", "share/doc/ratoon/LICENSE", "share/doc/ratoon/doc/serving.md"):
            self.assertTrue(os.path.isfile(os.path.join(folder, name)), name)
        with open(folder + "/share/doc/ratoon/licences/LIBRARIES") as f:
            told = dict(line.split()[:2] for line in f)
        self.assertEqual(set(told), set(os.listdir(folder + "/lib/ratoon")))
        for package in told.values():
            self.assertGreater(os.path.getsize(folder + "/share/doc/ratoon/licences/" + package), 200, package)


class Container(Base):
    """The Dockerfile, carried out without Docker, and containers of the image."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with open(ROOT / "Dockerfile") as f:
            build, final = dockerfile.stages(f.read())
        assert (build[0][1], final[0][1]) == ("debian:12 AS build", "debian:12-slim")
        folder = path("products")
        if os.environ.get("BUILD_STAGE"):
            with bare_root.copy(root, "build-stage") as at:
                stage = dockerfile.Stage(at, build, {})
                shutil.copytree(stage.inner("/src/build"), folder, ignore=lambda d, names: [
                    n for n in names if not n.endswith(".deb")])
        else:
            os.makedirs(folder)
            for d in made["deb"]:
                shutil.copy(d, folder)
        cls.image = dockerfile.Stage(cls.at, final, {("build", "/src/build"): folder})

    def run_image(self, *command, port=0, **env):
        p = self.image.start(path("container.log"), *command, env={"RATOON_PORT": str(port), **env})
        self.addCleanup(p.kill)
        return p

    def health(self, port, **env):
        return self.image.execute(*self.image.health, env={"RATOON_PORT": str(port), **env})

    def test_listens_where_it_is_published(self):
        """On every address, not as root, with a key that is made and printed once; healthy when it is ready; ends at
        once when it is stopped. RATOON_PORT keeps it apart from what else runs on this machine."""
        self.assertEqual(self.image.port, 8080, "what ratoon takes where nothing is said")
        key, port = None, free_port()
        self.assertEqual(self.health(port)[0], 1, "nothing listens yet")
        for start in range(2):
            p = self.run_image(port=port)
            until(lambda: self.health(port)[0] == 0, p)
            printed = re.findall(r"^API key, made now and kept in /var/lib/ratoon/api-key: (\S+)$", p.said(), re.M)
            self.assertEqual(len(printed), 1 if start == 0 else 0, p.said())
            key = key or printed[0]
            self.assertIn("listening on http://0.0.0.0:%d (every address" % port, p.said())
            with open("/proc/%d/status" % p.pid) as f:
                self.assertRegex(f.read(), r"(?m)^Uid:\t10001\t10001\t10001\t10001$")
            # 127.0.0.2 is not where a server on 127.0.0.1 alone listens; the name is that of the machine that publishes
            published = {"address": "127.0.0.2", "Host": "nas.example:9000"}
            self.assertEqual(ask(port, "/", **published)[0], 200)
            self.assertEqual(ask(port, "/v1/models", **published)[0], 401)
            self.assertEqual(ask(port, "/v1/models", Authorization="Bearer " + key, **published)[0], 200)
            self.end(p)
        kept = os.stat(self.image.inner("/var/lib/ratoon/api-key"))
        self.assertEqual((kept.st_uid, stat.S_IMODE(kept.st_mode)), (10001, 0o600))

    def test_a_given_key_counts(self):
        port = free_port()
        p = self.run_image(port=port, RATOON_API_KEY="mine")
        until(lambda: self.health(port)[0] == 0, p)
        self.assertNotIn("made now", p.said())
        status = lambda key: ask(port, "/v1/models", Authorization="Bearer " + key)[0]
        self.assertEqual((status("mine"), status("other")), (200, 401))
        self.end(p)

    def test_never_without_a_key(self):
        """Where the key cannot be kept there is no server."""
        status, out = self.image.execute(*self.image.entry, "serve", env={"RATOON_PORT": "0", "RATOON_GENERATE_KEY":
                                                                          "/etc/api-key"})
        self.assertEqual(status, 1, out)
        self.assertIn("--generate-key: /etc/api-key", out)
        self.assertNotIn("listening", out)

    def test_other_commands(self):
        self.assertTrue(self.image.execute(*self.image.entry, "run", *TEXT)[1].strip())
        self.assertEqual(self.image.execute(*self.image.entry, "version"), (0, "ratoon %s\n" % VERSION))
        (volume,) = self.image.volumes
        for name in volume, volume + "/cache", volume + "/models":
            self.assertEqual(os.stat(self.image.inner(name)).st_uid, 10001, name)
        self.assertEqual(glob.glob(self.image.inner("/packages*")), [])


if __name__ == "__main__":
    sys.exit(report.main(sys.modules[__name__]))
