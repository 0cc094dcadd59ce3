"""Headless Chromium for the tests of the page, driven over a pipe by DevTools' protocol: each message ends with a zero
byte. Every test has a context of its own, so that nothing of another one is in storage; a context has tabs."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

from helper import LIMIT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run",
           "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
           "--disable-background-timer-throttling", "--disable-renderer-backgrounding",
           "--disable-backgrounding-occluded-windows", "--host-resolver-rules=MAP plain.test 127.0.0.1", "--force-color-profile=srgb", "--remote-debugging-pipe"]


class Browser:
    def __init__(self):
        self.folder = tempfile.mkdtemp()
        to, self.write = os.pipe()
        self.read, back = os.pipe()

        def fds():
            a, b = os.dup(to), os.dup(back)
            for fd, place in ((a, 3), (b, 4)):
                if fd != place:
                    os.dup2(fd, place)
                os.set_inheritable(place, True)

        self.p = subprocess.Popen([CHROMIUM, *OPTIONS, "--user-data-dir=" + self.folder], preexec_fn=fds,
                                  close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        os.close(to)
        os.close(back)
        self.last, self.waiting, self.tabs = 0, b"", {}

    def message(self):
        while b"\0" not in self.waiting:
            if not select.select([self.read], [], [], LIMIT)[0]:
                raise AssertionError("chromium is silent")
            part = os.read(self.read, 1 << 16)
            if not part:
                raise AssertionError("chromium has ended")
            self.waiting += part
        one, self.waiting = self.waiting.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, session=None, **params):
        self.last += 1
        m = {"id": self.last, "method": method, "params": params}
        if session:
            m["sessionId"] = session
        os.write(self.write, json.dumps(m).encode() + b"\0")
        while True:
            r = self.message()
            if r.get("id") == self.last:
                if "error" in r:
                    raise AssertionError("%s: %s" % (method, r["error"]))
                return r["result"]
            if r.get("sessionId") in self.tabs:
                self.tabs[r["sessionId"]].event(r["method"], r["params"])

    def context(self):
        return self.call("Target.createBrowserContext")["browserContextId"]

    def drop(self, context):
        self.call("Target.disposeBrowserContext", browserContextId=context)

    def close(self):
        try:
            self.call("Browser.close")
        except AssertionError:
            pass
        try:
            self.p.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
        os.close(self.read)
        os.close(self.write)
        shutil.rmtree(self.folder, ignore_errors=True)


class Tab:
    """trouble: what the page's console complained of; asked: addresses of all requests."""

    def __init__(self, browser, context):
        self.b, self.trouble, self.asked, self.loads = browser, [], [], 0
        self.target = browser.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        browser.tabs[self.session] = self
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.before("document.addEventListener('DOMContentLoaded', () => { NOTES.time = 1e9; })")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def event(self, method, params):
        if method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.trouble.append(params["exceptionDetails"])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("warning", "error"):
            self.trouble.append(params["entry"])
        elif method == "Page.loadEventFired":
            self.loads += 1

    def call(self, method, **params):
        return self.b.call(method, self.session, **params)

    def before(self, script):
        """Runs in every document before its own scripts."""
        self.call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def js(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True,
                      userGesture=True)
        if "exceptionDetails" in r:
            raise AssertionError("%s: %s" % (expression[:2000], r["exceptionDetails"]))
        return r["result"].get("value")

    def wait(self, expression):
        end = time.monotonic() + LIMIT
        while True:
            try:
                value = self.js(expression)
            except AssertionError as e:                        # between two documents there is nothing to ask
                value, last = None, e
            else:
                last = None
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError("never true: %s; %s; the page says: %s" % (expression, last,
                                                                                self.js("document.body.innerText")))
            time.sleep(0.02)

    def go(self, url):
        """Also reloads. Returns when the page can be used."""
        self.js("window.old = true")
        self.call("Page.navigate", url=url)
        self.wait("!window.old && document.readyState === 'complete' && document.body.dataset.ready === 'yes'")

    def key(self, key, code, modifiers=0):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                      nativeVirtualKeyCode=code, modifiers=modifiers,
                      **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}))

    def type(self, id, text):
        """As a keyboard would, in place of what is there."""
        self.js("(e => { e.focus(); if (e.select) e.select(); })(document.getElementById('%s'))" % id)
        self.call("Input.insertText", text=text)

    def set(self, id, value):
        self.js("((e, v) => { if (e.type === 'checkbox') e.checked = v; else e.value = v; "
                "e.dispatchEvent(new Event('change', { bubbles: true })); })(document.getElementById(%s), %s)"
                % (json.dumps(id), json.dumps(value)))

    def press(self, text, within="document"):
        """Clicks the last button with this text, or this label, that is visible; waits until there is one."""
        self.wait("((text, root) => { const b = [...(root ? root.querySelectorAll('button') : [])].filter(b => "
                  "!b.disabled && b.checkVisibility({ visibilityProperty: true }) && (b.textContent === text || "
                  "b.getAttribute('aria-label') === text)).pop(); if (b) b.click(); return Boolean(b); })(%s, %s)"
                  % (json.dumps(text), within))

    def files(self, id, paths):
        node = self.call("Runtime.evaluate", expression="document.getElementById('%s')" % id)["result"]["objectId"]
        self.call("DOM.setFileInputFiles", files=paths, objectId=node)

    def size(self, width, height, scheme="light", phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self):
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def close(self):
        self.b.call("Target.closeTarget", targetId=self.target)
        self.b.tabs.pop(self.session)
