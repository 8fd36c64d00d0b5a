"""A headless Chromium, driven through the DevTools protocol on a pair of pipes.

It reaches only 127.0.0.1, and records its requests, scripts' messages and errors for the tests."""

import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)

KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), " ": (32, " "), "ArrowRight": (39, "")}
ALT, CONTROL, META, SHIFT = 1, 2, 4, 8


class Browser:
    """with Browser() as browser: page = browser.page() ..."""

    def __init__(self):
        self._profile = tempfile.mkdtemp(prefix="ovq_browser_")
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        flags = ["--headless", "--remote-debugging-pipe", f"--user-data-dir={self._profile}", "--no-sandbox",
                 "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--hide-scrollbars",
                 "--force-color-profile=srgb", "--font-render-hinting=none"]
        # The browser's pipe ends must be its descriptors 3 and 4.
        self._process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "sh", PROGRAM, *flags],
            pass_fds=(commands, answers), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(commands)
        os.close(answers)
        self._ids = itertools.count(1)
        self._waiting = {}
        self._news = threading.Condition()
        self._listeners = {}
        self._ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        rest = b""
        while part := os.read(self._answers, 1 << 16):
            *messages, rest = (rest + part).split(b"\0")
            for text in messages:
                message = json.loads(text)
                with self._news:
                    if "id" in message:
                        self._waiting[message["id"]] = message
                    elif listener := self._listeners.get(message.get("sessionId")):
                        listener(message["method"], message["params"])
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def send(self, method, params=None, session=None):
        """Sends a message; returns the number that the answer will have."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data):]
        return number

    def call(self, method, params=None, session=None, timeout=30):
        number = self.send(method, params, session)
        with self._news:
            if not self._news.wait_for(lambda: number in self._waiting or self._ended, timeout):
                raise TimeoutError(method)
            if number not in self._waiting:
                raise RuntimeError("the browser has ended")
            answer = self._waiting.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def page(self, width=1440, height=900, dark=False, touch=False, context=None):
        """Opens a tab, with storage of its own or in another one's context."""
        context = context or self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", {"url": "about:blank", "browserContextId": context})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = Page(self, target, session, context)
        self._listeners[session] = page._event
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.look(width, height, dark, touch)
        return page

    def close(self):
        try:
            self.call("Browser.close", timeout=5)
            self._process.wait(10)
        except (OSError, RuntimeError, TimeoutError, subprocess.TimeoutExpired):
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._commands)
        shutil.rmtree(self._profile, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def _is_on_its_way(error):
    """True for errors of a page that is being replaced: calls on the old page get no answer."""
    return any(word in str(error).lower() for word in ("context", "navigated"))


class Page:
    """A browser tab."""

    def __init__(self, browser, target, session, context):
        self._browser = browser
        self._target = target
        self._session = session
        self._context = context
        self._answers = {}  # by the address's ending: answers that replace the server's
        self.requests = []  # requested addresses
        self.complaints = []  # errors and warnings of scripts and of the browser

    def _event(self, method, params):
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Fetch.requestPaused":
            address = params["request"]["url"]
            answer = next((answer for end, answer in self._answers.items() if address.endswith(end)), None)
            reply = {"requestId": params["requestId"]}
            if answer:
                reply |= {"responseCode": answer[0], "body": base64.b64encode(answer[1].encode()).decode()}
            self._browser.send("Fetch.fulfillRequest" if answer else "Fetch.continueRequest", reply, self._session)
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([one.get("value", one.get("description")) for one in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            entry = params["entry"]
            self.complaints.append(f"{entry['text']} ({entry.get('url', '')})")

    def call(self, method, params=None, timeout=30):
        return self._browser.call(method, params, self._session, timeout)

    def look(self, width, height, dark=False, touch=False, reduced_motion=False):
        self.call("Emulation.setDeviceMetricsOverride",
                  {"width": width, "height": height, "deviceScaleFactor": 2 if touch else 1, "mobile": touch})
        self.call("Emulation.setTouchEmulationEnabled", {"enabled": touch})
        self.call("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if reduced_motion else "no-preference"}]})

    def answer(self, end, status=None, body=""):
        """Answers requests whose address ends so without the server from now on; without a status,
        undoes that."""
        self._answers[end] = status and (status, body)
        self.call("Fetch.enable", {"patterns": [{"urlPattern": f"*{end}"}]})

    def open(self, address):
        self.call("Page.navigate", {"url": address})
        self.wait("document.readyState === 'complete'")

    def run(self, script):
        """Returns the value of an expression, or of its promise."""
        result = self.call("Runtime.evaluate", {"expression": script, "awaitPromise": True, "returnByValue": True,
                                                "userGesture": True})
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description", script))
        return result["result"].get("value")

    def wait(self, condition, timeout=30):
        """Waits until the expression is true and returns its value."""
        end = time.monotonic() + timeout
        while True:
            try:
                if self.run(f"!!({condition})"):
                    return
            except RuntimeError as error:
                if not _is_on_its_way(error):
                    raise
            if time.monotonic() > end:
                raise TimeoutError(f"{condition}; the page says: {self.run('document.body.innerText')}")
            time.sleep(0.02)

    def key(self, key, modifiers=0):
        code, text = KEYS[key] if key in KEYS else (ord(key.upper()), key)
        event = {"key": key, "modifiers": modifiers, "windowsVirtualKeyCode": code,
                 "code": f"Key{key.upper()}" if len(key) == 1 and key.isalpha() else key}
        if text and not modifiers & (ALT | CONTROL | META):
            event["text"] = text
        self.call("Input.dispatchKeyEvent", {"type": "keyDown", **event})
        event.pop("text", None)
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    def write(self, text):
        self.call("Input.insertText", {"text": text})

    def click(self, selector):
        """Clicks like a mouse: on the topmost element at its position, scrolled into view. A page
        may move while data arrives: a click that lands beside the element is repeated."""
        end = time.monotonic() + 30
        while True:
            place = self.run(f"""(() => {{
                const element = document.querySelector({json.dumps(selector)});
                if (!element) return null;
                element.scrollIntoView({{block: "center"}});
                const {{x, y, width, height}} = element.getBoundingClientRect();
                const at = [x + width / 2, y + height / 2];
                const hit = document.elementFromPoint(...at);
                if (!element.contains(hit)) return ["hidden", hit?.outerHTML ?? "out of view"];
                window.missing?.abort();
                const missing = window.missing = new AbortController();  // until the click has arrived
                const arrived = (event) => {{
                    if (!element.contains(event.target)) {{
                        event.preventDefault();
                        event.stopImmediatePropagation();
                    }} else if (event.type === "click") {{
                        missing.abort();
                    }}
                }};
                for (const type of ["mousedown", "mouseup", "click"]) {{
                    addEventListener(type, arrived, {{capture: true, signal: missing.signal}});
                }}
                return at;
            }})()""")
            if place is None or place[0] == "hidden":
                raise RuntimeError(f"cannot click {selector}: {place}")
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", {"type": kind, "x": place[0], "y": place[1], "button": "left",
                                                       "clickCount": 1})
            if not self._missed():
                return
            if time.monotonic() > end:
                raise TimeoutError(f"a click on {selector} arrives elsewhere")

    def _missed(self):
        try:
            return self.run("window.missing?.signal.aborted === false")
        except RuntimeError as error:
            if not _is_on_its_way(error):
                raise
            return False  # the click led to another page

    def sibling(self):
        """Opens another tab in the same browser context."""
        return self._browser.page(context=self._context)

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", {"format": "png"})["data"]))

    def close(self):
        self._browser.call("Target.closeTarget", {"targetId": self._target})
