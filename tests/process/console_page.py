"""Operates the console in a browser, through a connection to its server that tests can cut."""

import json
import os
import socket
import threading
import time


class Cutter:
    """Forwards connections to the server; on demand breaks them after a number of events."""

    def __init__(self, address):
        self.target = address
        self.events_left = None  # events left of a stream; None: any number
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "http://127.0.0.1:%d" % self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            host, port = self.target.removeprefix("http://").split(":")
            server = socket.create_connection((host, int(port)))
            threading.Thread(target=self._pass, args=(client, server), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source, sink, answers=False):
        try:
            while data := source.recv(1 << 16):
                if answers and self.events_left is not None:
                    # One read may contain a whole answer of a fast server, so the cut is within the
                    # data.
                    pieces = data.split(b"data:", self.events_left + 1)
                    if len(pieces) > self.events_left + 1:
                        sink.sendall(b"data:".join(pieces[:-1]))
                        self.events_left = None
                        # data that the browser has not read when a connection breaks would be lost
                        time.sleep(0.5)
                        break
                    self.events_left -= len(pieces) - 1
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def close(self):
        self._listener.close()


class ConsolePage:
    """Actions of a person on the page, and what the page shows."""

    def __init__(self, chromium, address, screenshots=None, width=1440, height=900, touch=False):
        """screenshots: the folder for them, or None."""
        self.address = address
        self.screenshots = screenshots
        self.size = width, height
        self.touch = touch
        self.page = chromium.page(width, height, touch=touch)
        self.run, self.wait, self.key, self.click = (
            self.page.run, self.page.wait, self.page.key, self.page.click)

    def open(self):
        self.page.open(f"{self.address}/")
        self.ready()
        self.sampling(seed=7)  # the same answers every time
        return self

    def ready(self):
        self.wait("document.querySelector('#send').disabled === false")

    def set(self, selector, value):
        """Types into a field, which may be in a panel that is closed."""
        self.run(f"""(() => {{
            const field = document.querySelector({json.dumps(selector)});
            field.value = {json.dumps(str(value))};
            field.dispatchEvent(new Event("input", {{bubbles: true}}));
        }})()""")

    def sampling(self, **values):
        for name, value in values.items():
            self.set(f"[name={name}]", value)

    def type(self, text):
        self.run("document.querySelector('#message').focus()")
        self.page.write(text)

    def start(self, text):
        """Sends a message without waiting for the answer."""
        self.type(text)
        if self.touch:
            self.click("#send")
        else:
            self.key("Enter")

    def send(self, text, turns=None):
        turns = turns or self.count() + 1
        self.after(lambda: self.start(text), turns)

    def after(self, action, turns):
        """Runs an action that makes a new last turn, and waits for its end."""
        last = "JSON.parse(sessionStorage.getItem(`ovq.branch.${sessionStorage.getItem('ovq.open')}`))?.turns.at(-1)"
        before = self.run(f"{last}?.id ?? null")
        action()
        self.wait(f"{last} && {last}.id !== {json.dumps(before)} && {last}.state === 'done'")
        self.settled(turns)

    def settled(self, turns=None):
        self.wait("document.querySelector('#stop').hidden && !document.querySelector('#send').disabled" +
                  ("" if turns is None else f" && document.querySelectorAll('#turns > li .foot').length === {turns}"))

    def count(self):
        return self.run("document.querySelectorAll('#turns > li .foot').length")

    def press(self, label):
        """Presses the button with this label, wherever it is."""
        self.run(f"""[...document.querySelectorAll("button")].find((one) => !one.disabled && one.checkVisibility() &&
            (one.getAttribute("aria-label") ?? one.textContent) === {json.dumps(label)}).click()""")

    def texts(self, of="answer"):
        return self.run(f"[...document.querySelectorAll('#turns .{of} .said')].map((one) => one.textContent)")

    def session(self):
        return self.run("sessionStorage.getItem('ovq.open')")

    def in_the_dark(self, dark=True):
        self.page.look(*self.size, dark, self.touch)

    def shot(self, name, settled=True):
        """Takes screenshots in both colour schemes."""
        if not self.screenshots:
            return
        if settled:
            self.run("new Promise((done) => setTimeout(done, 400))")
        for dark in (False, True):
            self.in_the_dark(dark)
            self.page.screenshot(os.path.join(self.screenshots, f"{name}-{'dark' if dark else 'light'}.png"))
        self.in_the_dark(False)
