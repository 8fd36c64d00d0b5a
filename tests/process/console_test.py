"""The console in a real browser with a real server: use, appearance and network access.

usage: console_test.py --build BUILD_FOLDER [--screenshots FOLDER] [unittest arguments]
"""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import browser
import console_checks
from certificates import write_tenants
from console_page import ConsolePage, Cutter
from http_client import http_port
from server_process import ROOT, ServerProcess

BINARY = None  # path of ovq-server, set by main
SCREENSHOTS = None  # folder, or None
MODEL = os.path.join(ROOT, "models", "python-bytes")
CHAT_MODEL = os.path.join(ROOT, "models", "scripted-chat")
CHROMIUM = None  # the one browser of all tests

TEMPLATE = """{% for message in messages %}# {{ message.role }}
{{ message.content }}
# end
{% endfor %}{% if add_generation_prompt %}# assistant
{% endif %}"""


def serve(model, *flags):
    server = ServerProcess(BINARY, model, "--http-listen", "127.0.0.1:0", *flags)
    server.http_address = f"http://127.0.0.1:{http_port(server)}"
    return server


def call(address, method, path, body=None, token=None):
    """Returns the server's JSON answer."""
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{address}/ovq/v1{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read() or b"{}")


class ConsoleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve(MODEL, "--state-memory", "256M")
        cls.addClassCleanup(cls.server.kill)

    def console(self, address=None, **look):
        console = ConsolePage(CHROMIUM, address or self.server.http_address, SCREENSHOTS, **look)
        self.addCleanup(console.page.close)
        self.consoles = getattr(self, "consoles", []) + [console]
        return console

    def tearDown(self):
        for console in getattr(self, "consoles", []):
            self.assertEqual(console.page.complaints, [])
            others = [url for url in console.page.requests
                      if not url.startswith((console.address, "data:", "about:"))]
            self.assertEqual(others, [])

    def of_session(self, console, address=None):
        return call(address or self.server.http_address, "GET", f"/sessions/{console.session()}")

    def assert_in_step(self, console):
        """Asserts that the page and the server agree on the session's length."""
        position = int(self.of_session(console)["position"])
        shown = f"{position:,} token{'' if position == 1 else 's'}"
        console.wait(f"document.querySelector('#figure-length')?.textContent === {json.dumps(shown)}")

    def test_a_click_finds_what_has_moved(self):
        """The panel's figures arrive between finding the position and the click (Page.click)."""
        console = self.console().open()
        console.run("""(() => {
            const find = document.elementFromPoint;
            document.elementFromPoint = (...at) => {
                document.elementFromPoint = find;
                const hit = document.elementFromPoint(...at);
                document.querySelector("#memory-note").style.marginBottom = "80px";
                return hit;
            };
        })()""")
        console.click("#keep-texts")
        self.assertTrue(console.run("document.querySelector('#keep-texts').checked"))

    # --- conversations ---
    def conversation(self, name, **look):
        console = self.console(**look).open()
        console.shot(f"{name}-1-new")
        # Screenshots use a text that is long enough to show the effect of a bounded memory.
        console.sampling(maxTokens=1500 if SCREENSHOTS else 120, temperature=0.5, seed=3)
        console.start("def count_words(text):\n    \"\"\"How often each word occurs.\"\"\"\n")
        console.wait("document.querySelector('#turns .answer .said')?.textContent.length > 20")
        console.shot(f"{name}-2-streaming", settled=False)
        console.settled(1)
        console.send("\n\ndef longest_word(text):\n")
        first = console.texts()
        self.assert_in_step(console)

        # After a rewind with the same seed the answer is the same, because the session is the same
        # to the byte.
        console.after(lambda: console.press("Regenerate, turn 2"), 2)
        self.assertEqual(console.texts(), first)
        console.press("Edit, turn 2")
        console.shot(f"{name}-3-edit")
        console.run("document.querySelector('.edit textarea').value = '\\n\\nclass Words:\\n'")
        console.after(lambda: console.press("Replace"), 2)
        self.assertEqual(console.texts("user")[1], "\n\nclass Words:\n")
        self.assertEqual(console.texts()[0], first[0])
        self.assert_in_step(console)

        # A branch after the first turn, and back with the switcher.
        trunk, whole = console.session(), console.texts()
        console.press("Branch, turn 1")
        console.wait(f"sessionStorage.getItem('ovq.open') !== {json.dumps(trunk)}")
        console.settled(1)
        console.send("\n\nif __name__ == \"__main__\":\n")
        branch = console.session()
        self.assertEqual(console.texts()[0], first[0])
        self.assert_in_step(console)
        console.shot(f"{name}-4-branch")
        if look.get("touch"):
            for panel in ("details", "sessions"):
                console.click(f"#open-{panel}")
                console.shot(f"{name}-5-{panel}")
                console.key("Escape")
        console.press("Branch before")
        console.wait(f"sessionStorage.getItem('ovq.open') === {json.dumps(trunk)}")
        self.assertEqual(console.texts(), whole)
        self.assert_in_step(console)
        # The branches' list and the sessions' list contain both.
        for listed in ("branch", "open"):
            self.assertEqual(console.run(f"[{json.dumps(trunk)}, {json.dumps(branch)}].map((id) => "
                                         f"!!document.querySelector(`[data-key='{listed}-${{id}}']`))"), [True, True])
        # Hidden parts must not be wider than the screen either.
        self.assertLessEqual(console.run("document.documentElement.scrollWidth"), console.run("innerWidth"))
        for dark in (True, False):
            console.in_the_dark(dark)
            self.assertEqual(console_checks.poor_contrasts(console), [])
        for session in (trunk, branch):
            call(self.server.http_address, "DELETE", f"/sessions/{session}")

    def test_conversation_on_a_wide_screen(self):
        self.conversation("wide")

    def test_conversation_on_a_phone(self):
        self.conversation("phone", width=390, height=844, touch=True)

    def test_branch_of_the_first_turn_while_it_is_edited(self):
        console = self.console().open()
        console.sampling(maxTokens=8)
        console.send("import os\n")
        first = console.session()
        console.press("Edit, turn 1")
        console.run("document.querySelector('.edit textarea').value = 'import re\\n'")
        console.after(lambda: console.press("Send in a branch"), 1)
        self.assertNotEqual(console.session(), first)
        self.assertEqual(console.texts("user"), ["import re\n"])
        self.assert_in_step(console)
        self.assertEqual(console.run("document.querySelectorAll('#branches button').length"), 2)

    def test_stop_leaves_what_is_shown(self):
        console = self.console().open()
        console.sampling(maxTokens=4000, temperature=0)
        console.start("x = [\n")
        console.wait("document.querySelector('#turns .answer .said')?.textContent.length > 30")
        console.key("Escape")
        console.settled(1)
        self.assertIn("stopped", console.run("document.querySelector('#turns .foot .note').textContent"))
        self.assert_in_step(console)
        # A token is a byte here, and the prompt begins with a token that is none.
        said = len("x = [\n" + console.texts()[0])
        self.assertLessEqual(abs(int(self.of_session(console)["position"]) - said - 1), 3)
        console.sampling(maxTokens=8)
        console.send("]\n")
        self.assert_in_step(console)

    def test_what_looks_like_html_is_text(self):
        console = self.console().open()
        evil = "<script>document.title = 'run'</script><img src=x onerror=document.title='run'> & <b>bold</b>"
        events = [{"started": {"promptTokens": "1"}}, *({"chunk": {"text": part, "tokenIds": [1]}} for part in evil),
                  {"finished": {"reason": "FINISH_REASON_STOP", "usage": {"position": "99"}}}]
        console.page.answer("/generate", 200, "".join(f"data: {json.dumps(event)}\n\n" for event in events))
        console.send(evil)
        for said in (console.texts("user"), console.texts()):
            self.assertEqual(said, [evil])
        self.assertEqual(console.run("document.querySelectorAll('#turns script, #turns img, #turns b b').length"), 0)
        self.assertEqual(console.run("document.querySelector('#turns').textContent.split('<b>bold</b>').length"), 3)
        self.assertFalse(console.run("document.title").startswith("run"))
        # Also on other pages, where the conversation's title is its first text.
        self.assertEqual(console.run("document.querySelectorAll('script:not([src]), img').length"), 0)

    def test_the_servers_load(self):
        console = self.console().open()
        console.sampling(maxTokens=60000, temperature=0)
        console.start("z = [\n")
        figures = "[...document.querySelectorAll('#load dd')].map((one) => one.textContent)"
        # Two readings of the server's counters give a speed.
        console.wait(f"{figures}[0] === '1' && parseFloat({figures}[3].replace(',', '')) > 0")
        memory = console.run(f"{figures}[4]")
        self.assertRegex(memory, r"^[\d.]+\s[kM]B of 268\sMB$")
        self.assertGreater(console.run("document.querySelector('#load-meter').value"), 0)
        console.key("Escape")
        console.settled(1)
        console.wait(f"{figures}[0] === '0'")

    def test_settings_are_held_to_their_ranges(self):
        console = self.console().open()
        console.sampling(topP=2)
        self.assertEqual(console.run("document.querySelector('#sampling-note').textContent"),
                         "Top p: expected above 0 to 1.")
        console.start("x")
        console.wait("document.activeElement.name === 'topP'")
        self.assertEqual(console.count(), 0)
        console.sampling(topP="")
        console.set("#setup-centroids", 1)
        console.wait("document.querySelector('#setup-forecast').textContent.startsWith('Centroids: expected')")
        console.set("#setup-centroids", 64)
        console.wait("document.querySelector('#setup-forecast').textContent.startsWith('It will hold')")
        console.sampling(maxTokens=4)
        console.send("x")
        self.assertEqual(self.of_session(console)["maxCentroids"], 64)

    # --- faults ---
    def test_a_refusal_is_a_sentence_and_the_next_turn_takes_its_place(self):
        console = self.console().open()
        console.sampling(maxTokens=8)
        console.send("import os\n")
        refusal = {"error": {"message": "queue: full", "type": "rate_limit_error", "code": "queue_full"}}
        console.page.answer("/generate", 429, json.dumps(refusal))
        console.start("import sys\n")
        console.wait("document.querySelector('.problem')?.textContent.startsWith('The server’s queue is full.')")
        console.page.answer("/generate")
        console.settled(2)
        console.send("import re\n", turns=2)
        self.assertEqual(console.texts("user"), ["import os\n", "import re\n"])
        self.assert_in_step(console)
        self.forgive(console)

    def test_a_broken_connection_is_told_and_the_turn_is_carried_out_once(self):
        cutter = Cutter(self.server.http_address)
        self.addCleanup(cutter.close)
        console = self.console(cutter.address).open()
        console.sampling(maxTokens=200)
        cutter.events_left = 20
        console.start("def f(x):\n")
        console.wait("document.querySelector('.problem')?.textContent.includes('The connection broke')")
        console.press("Send again")
        console.wait("!document.querySelector('.problem')")
        console.settled(1)
        position = int(self.of_session(console)["position"])
        self.assertLessEqual(abs(position - 1 - len("def f(x):\n" + console.texts()[0])), 3)
        self.assert_in_step(console)

        cutter.events_left = 20
        console.start("\n\ndef g(x):\n")
        console.wait("document.querySelector('.problem')?.textContent.includes('The connection broke')")
        console.press("Keep what is here")
        console.wait("!document.querySelector('.problem')")
        self.assert_in_step(console)
        self.assertGreater(int(self.of_session(console)["position"]), position)
        self.forgive(console)

    def forgive(self, console):
        """Drops the browser's own messages about connections and answers that the test has broken.
        """
        console.page.complaints[:] = [one for one in console.page.complaints if "Failed to load resource" not in one]

    def test_a_session_that_is_gone_goes_on_in_a_new_one(self):
        console = self.console().open()
        console.sampling(maxTokens=8)
        console.send("import sys\n")
        old = console.session()
        call(self.server.http_address, "DELETE", f"/sessions/{old}")
        console.start("\nimport re\n")
        console.wait("document.querySelector('.problem')?.textContent.includes('no longer on the server')")
        console.press("Go on in a new session")
        console.wait(f"sessionStorage.getItem('ovq.open') !== {json.dumps(old)}")
        console.settled(2)
        self.assertEqual(console.texts("user"), ["import sys\n", "\nimport re\n"])
        self.assert_in_step(console)
        self.forgive(console)

    def test_a_session_that_others_use_too(self):
        console = self.console().open()
        console.sampling(maxTokens=8)
        console.send("import sys\n")
        mine = console.session()
        before = int(self.of_session(console)["position"])
        self.elsewhere(mine, "\nprint(")
        after = int(self.of_session(console)["position"])
        console.start("\nimport re\n")
        console.wait("document.querySelector('.problem')?.textContent.includes('Someone else')")
        console.press("Send in a branch of what is here")
        console.wait(f"sessionStorage.getItem('ovq.open') !== {json.dumps(mine)}")
        console.settled(2)
        self.assert_in_step(console)
        theirs = call(self.server.http_address, "GET", f"/sessions/{mine}")
        self.assertEqual(int(theirs["position"]), after)
        console.click(f"[data-key='branch-{mine}']")
        console.wait(f"sessionStorage.getItem('ovq.open') === {json.dumps(mine)}")
        self.assertIn(f"{after - before} tokens that this browser has no text of",
                      console.run("document.querySelector('.gap').textContent"))
        self.forgive(console)

    def elsewhere(self, session, text):
        request = urllib.request.Request(
            f"{self.server.http_address}/ovq/v1/sessions/{session}/generate",
            json.dumps({"prompt": {"text": text}, "stop": {"max_tokens": 4}}).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            response.read()

    # --- what is kept where ---
    def test_a_reload_keeps_the_conversation_and_a_closed_tab_does_not(self):
        console = self.console().open()
        console.sampling(maxTokens=8)
        console.send("import sys\n")
        said = console.texts()
        console.open()
        self.assertEqual(console.texts(), said)
        console.send("\nimport re\n")
        self.assert_in_step(console)
        # In a new tab the session is listed without its text, and can be continued.
        session = console.session()
        other = console.page.sibling()
        other.open(f"{console.address}/")
        other.wait(f"document.querySelector(\"[data-key='open-{session}']\")")
        other.run(f"document.querySelector(\"[data-key='open-{session}']\").click()")
        other.wait("document.querySelector('.gap')?.textContent.includes('no text of')")
        other.close()
        # The switch moves the texts to where other tabs find them.
        console.click("#keep-texts")
        other = console.page.sibling()
        other.open(f"{console.address}/")
        other.wait(f"document.querySelector(\"[data-key='open-{session}'] strong\")?.textContent === 'import sys'")
        other.run(f"document.querySelector(\"[data-key='open-{session}']\").click()")
        other.wait("document.querySelectorAll('#turns .answer .said').length === 2")
        other.close()
        console.press("Delete session: import sys")
        console.press("Delete")
        console.wait("sessionStorage.getItem('ovq.open') === null")
        self.assertEqual(console.run("Object.keys({...localStorage, ...sessionStorage})"
                                     ".filter((key) => key.startsWith('ovq.branch.'))"), [])
        with self.assertRaises(urllib.error.HTTPError):
            call(self.server.http_address, "GET", f"/sessions/{session}")

    def test_a_page_that_goes_away_in_the_middle_of_an_answer(self):
        console = self.console().open()
        console.sampling(maxTokens=4000, temperature=0)
        console.start("y = [\n")
        console.wait("document.querySelector('#turns .answer .said')?.textContent.length > 30")
        console.open()
        console.wait("document.querySelector('.problem')?.textContent.includes('The session may hold a part')")
        console.press("Keep what is here")
        console.wait("!document.querySelector('.problem')")
        self.assert_in_step(console)

    # --- access ---
    def test_keyboard_alone(self):
        console = self.console().open()
        self.assertEqual(console.run("document.activeElement.id"), "message")
        console.sampling(maxTokens=8)
        console.send("import sys\n")
        self.assertEqual(console_checks.unreachable(console), ([], []))
        console.key("/", browser.ALT)
        console.wait("document.querySelector('#shortcuts-dialog').open")
        console.shot("wide-keyboard")
        console.key("Escape")
        console.wait("!document.querySelector('#shortcuts-dialog').open")
        console.key("n", browser.ALT)
        console.wait("!document.querySelector('#setup').hidden")
        self.assertEqual(console.run("document.activeElement.id"), "message")
        # A drawer takes the focus, and returns it.
        console.page.look(390, 844)
        console.key("m", browser.ALT)
        console.wait("document.activeElement.closest('#details-panel') && document.querySelector('main').inert")
        self.assertEqual(console_checks.unreachable(console), ([], []))
        console.key("Escape")
        console.wait("document.activeElement.id === 'message'")

    def test_streamed_text_is_spoken_in_whole_pieces(self):
        console = self.console().open()
        console.page.look(1440, 900, reduced_motion=True)
        console.sampling(maxTokens=1000)
        console.start("import sys\n")
        console.wait("document.querySelector('.streaming .said') && "
                     "getComputedStyle(document.querySelector('.streaming .said'), '::after').animationName === 'none'")
        console.settled(1)
        spoken = console.run("[...document.querySelectorAll('#announcer p')].map((one) => one.textContent)")
        self.assertEqual(spoken[-1], "The answer has ended.")
        said = "".join(spoken[:-1]).strip()  # the last 20 pieces are kept
        self.assertTrue(said and console.texts()[0].strip().endswith(said), (said, console.texts()))
        self.assertLess(len(spoken), 21)

    def test_colours(self):
        colours = Path(ROOT, "server/http/console/colors.css").read_text()
        style = Path(ROOT, "server/http/console/style.css").read_text()
        self.assertEqual(console_checks.poor_colours(colours), [])
        # There are no colours besides those that were checked.
        self.assertEqual(re.findall(r"#[0-9a-fA-F]{3,8}\b(?=[;\s])", style), [])


class Template(ConsoleTest):
    """Runs the console on a model with a chat template."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp(prefix="ovq_console_test_")
        cls.addClassCleanup(shutil.rmtree, folder)
        for name in ("config.json", "model.safetensors"):
            os.symlink(os.path.join(MODEL, name), os.path.join(folder, name))
        Path(folder, "chat_template.jinja").write_text(TEMPLATE)
        cls.server = serve(folder, "--state-memory", "256M")
        cls.addClassCleanup(cls.server.kill)

    def test_messages(self):
        console = self.console().open()
        console.set("#setup-system", "Write Python.")
        console.shot("wide-messages-1-new")
        console.sampling(maxTokens=24, seed=5)
        console.send("A list of primes")
        console.send("Now of squares")
        whole = console.texts()
        self.assertEqual(console.run("document.querySelector('.system .said').textContent"), "Write Python.")
        self.assert_in_step(console)
        console.after(lambda: console.press("Regenerate, turn 2"), 2)
        self.assertEqual(console.texts(), whole)
        # The whole conversation in a new session gives the same text.
        length = int(self.of_session(console)["position"])
        console.shot("wide-messages-2-regenerated")
        old = console.session()
        call(self.server.http_address, "DELETE", f"/sessions/{old}")
        console.open()
        console.shot("wide-messages-3-gone")
        console.press("Go on in a new session")
        console.wait(f"sessionStorage.getItem('ovq.open') !== {json.dumps(old)}")
        console.settled()
        self.assertEqual(int(self.of_session(console)["position"]), length)
        console.send("And of cubes")
        self.assert_in_step(console)
        # Each of its turns can be rewound.
        console.sampling(maxTokens=24, seed=5)
        console.after(lambda: console.press("Regenerate, turn 2"), 2)
        self.assertEqual(console.texts(), whole)
        self.assert_in_step(console)
        self.forgive(console)

    def test_a_stopped_answer_is_gone_on_from(self):
        console = self.console().open()
        console.sampling(maxTokens=20000, temperature=0)
        console.start("A long list")
        console.wait("document.querySelector('#turns .answer .said')?.textContent.length > 30")
        console.click("#stop")
        console.settled(1)
        console.sampling(maxTokens=8)
        console.send("Thanks")
        self.assert_in_step(console)


class ChatModel(ConsoleTest):
    """Runs the console on the shipped chat model."""

    @classmethod
    def setUpClass(cls):
        cls.server = serve(CHAT_MODEL, "--state-memory", "256M")
        cls.addClassCleanup(cls.server.kill)

    def chat(self, name, **look):
        console = self.console(**look).open()
        console.set("#setup-system", "Answer briefly.")
        console.sampling(temperature=0)
        console.send("My dog's name is Rex.")
        console.send("What is OVQ?")
        console.send("What is my dog's name?")
        self.assertEqual(console.texts()[::2], ["I will remember that your dog's name is Rex.", "Your dog's name is Rex."])
        self.assert_in_step(console)
        # The conversation goes on in a branch, and in a new session after that one is gone.
        console.press("Branch, turn 2")
        console.settled(2)
        console.send("Do you remember my dog's name?")
        self.assertEqual(console.texts()[2], "Your dog's name is Rex.")
        console.shot(f"{name}-chat")
        if look.get("touch"):
            console.click("#open-details")
            console.shot(f"{name}-chat-details")
            console.key("Escape")
        old = console.session()
        call(self.server.http_address, "DELETE", f"/sessions/{old}")
        console.start("What is 7 plus 8?")
        console.wait("document.querySelector('.problem')?.textContent.includes('no longer on the server')")
        console.press("Go on in a new session")
        console.wait(f"sessionStorage.getItem('ovq.open') !== {json.dumps(old)}")
        console.settled(4)
        self.assertEqual(console.texts()[2:], ["Your dog's name is Rex.", "7 plus 8 is 15."])
        self.assert_in_step(console)
        self.forgive(console)

    def test_a_chat_on_a_wide_screen(self):
        self.chat("wide")

    def test_a_chat_on_a_phone(self):
        self.chat("phone", width=390, height=844, touch=True)


class Access(ConsoleTest):
    """Access control of the console, and the headers of its files."""

    TOKEN = "console-0123456789-abcdefghij"

    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp(prefix="ovq_console_test_")
        cls.addClassCleanup(shutil.rmtree, folder)
        tenants = os.path.join(folder, "tenants.json")
        write_tenants(tenants, {"alice": cls.TOKEN})
        cls.server = serve(MODEL, "--state-memory", "256M", "--tenants", tenants)
        cls.addClassCleanup(cls.server.kill)

    def test_a_token_is_asked_for_and_kept_in_the_tab(self):
        console = self.console()
        console.page.open(f"{console.address}/")
        for token, says in (("wrong-0123456789-abcdefghij", "asks for a token"), (self.TOKEN, "does not take")):
            console.wait("document.querySelector('#token-dialog').open && "
                         f"document.querySelector('#token-note').textContent.includes('{says}')")
            console.page.write(token)
            console.key("Enter")
        console.ready()
        console.sampling(maxTokens=8)
        console.send("import sys\n")
        kept = console.run(f"""[localStorage, sessionStorage].map((storage) =>
            Object.values(storage).some((value) => value.includes("{self.TOKEN}")))""")
        self.assertEqual(kept, [False, True])
        console.open()
        self.assertEqual(console.count(), 1)
        console.click("#forget-token")
        console.wait("document.querySelector('#token-dialog')?.open")
        self.forgive(console)

    def test_files(self):
        address = self.server.http_address
        names = ["", *sorted(path.name for path in Path(ROOT, "server/http/console").iterdir()
                             if path.suffix in (".html", ".css", ".js", ".svg"))]
        for name in names:
            with urllib.request.urlopen(f"{address}/{name}", timeout=10) as response:
                self.assertEqual(response.read(), Path(ROOT, "server/http/console", name or "index.html").read_bytes())
                headers = response.headers
            self.assertIn("default-src 'self'", headers["Content-Security-Policy"])
            self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
            # Files are revalidated at every visit, so that files of two versions are never mixed.
            self.assertEqual(headers["Cache-Control"], "no-cache")
            again = urllib.request.Request(f"{address}/{name}", headers={"If-None-Match": headers["ETag"]})
            with self.assertRaises(urllib.error.HTTPError) as unchanged:
                urllib.request.urlopen(again, timeout=10)
            self.assertEqual((unchanged.exception.code, unchanged.exception.read()), (304, b""))
        with self.assertRaises(urllib.error.HTTPError) as missing:
            urllib.request.urlopen(f"{address}/embed.cmake", timeout=10)
        self.assertEqual(missing.exception.code, 404)


# Selects single tests by their name.
for case in (Template, ChatModel, Access):
    for name in [name for name in vars(ConsoleTest) if name.startswith("test_") and name not in vars(case)]:
        setattr(case, name, None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--screenshots")
    options, rest = parser.parse_known_args()
    if browser.PROGRAM is None:
        print("SKIPPED: Chromium is not installed (Debian package chromium)")
        sys.exit(0)
    BINARY = os.path.join(options.build, "bin", "ovq-server")
    SCREENSHOTS = options.screenshots
    if SCREENSHOTS:
        os.makedirs(SCREENSHOTS, exist_ok=True)
    with browser.Browser() as CHROMIUM:
        unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
