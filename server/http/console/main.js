// The console: what the page shows, and what its controls do.
import {Api} from "./api.js";
import {Chat, isConversation} from "./chat.js";
import {announce, byId, h, replace, Speaker} from "./dom.js";
import {askForToken, confirmed, drawers, shortcuts} from "./frame.js";
import {MemoryPanel} from "./memory.js";
import {showBranches, showLoad, showSessions, titleOf} from "./panels.js";
import {Sampling, Setup} from "./settings.js";
import {Store} from "./store.js";
import {count, explain, GONE, number, RESTORABLE} from "./text.js";
import {Transcript} from "./transcript.js";

const STATUS_EVERY_MS = 2000;
const SESSIONS_EVERY_MS = 6000;
const SAVE_EVERY_MS = 1000;

const store = new Store();
const api = new Api(askForToken);
const memory = new MemoryPanel(api);
const sampling = new Sampling(store);
const setup = new Setup(memory, () => { if (!branch) showMemory(); });
const speaker = new Speaker();
const message = byId("message");
const chat = new Chat(api, store, () => sampling.request, changed);
let info = null;
let branch = null;  // what is shown; null: a conversation that is not there yet
let working = false;  // a rewind, a fork or the like is under way

// --- what is shown ---
function show(next) {
  branch = next;
  store.open = branch?.session;
  byId("setup").hidden = branch !== null;
  byId("notice").replaceChildren();
  render();
  transcript.toEnd();
}

function render() {
  const running = branch ? chat.running(branch) : null;
  transcript.show(branch, running);
  byId("title").textContent = titleOf(branch);
  const parts = branch ? [`${branch.session.slice(0, 8)}`, branch.memory,
                          branch.maxCentroids ? `${number(branch.maxCentroids)} centroids` : null] : [info?.name];
  byId("subtitle").textContent = parts.filter((part) => part).join(" · ");
  document.title = branch ? `${titleOf(branch)} – ovq-server` : "ovq-server";
  showControls(running);
  showBranches(branch, store, open);
  showMemory();
}

function showControls(running) {
  byId("stop").hidden = running === null;
  byId("send").hidden = running !== null;
  byId("send").disabled = working || info === null;
  const raw = branch ? !isConversation(branch) : !info?.hasChatTemplate;
  document.body.classList.toggle("raw", raw && info !== null);
  message.placeholder = raw ? "Text to continue" : "Message";
  byId("composer-hint").textContent = running ? "Esc stops, and the session stays."
      : working ? "The server is at work on the session." : "Enter sends, Shift+Enter makes a line.";
  nameSend(raw);
}

// Without a text of its own a turn goes on with the one that is there.
function nameSend(raw) {
  const goesOn = raw && branch?.position > 0 && message.value === "";
  byId("send").textContent = goesOn ? "Continue" : "Send";
}

function showMemory() {
  if (!info) return;
  const kind = branch ? {memory: branch.memory, maxCentroids: branch.maxCentroids} : setup.kind;
  memory.show(kind, branch ?? {});
}

function tell(error) {
  const again = h("button", {type: "button", on: {click: () => byId("notice").replaceChildren()}}, "Close");
  replace(byId("notice"), h("div", {class: "problem"}, h("p", {}, explain(error)), h("div", {class: "buttons"}, again)));
  byId("notice").scrollIntoView({block: "nearest"});
}

// What a turn does as it runs, of whichever branch.
let saved = 0;
function changed(of, what, text) {
  if (what === "event") {
    if (performance.now() - saved > SAVE_EVERY_MS) {
      saved = performance.now();
      keep(of);
    }
    if (of !== branch) return;
    transcript.grow(branch, text);
    memory.grow(branch.position);
    if (text) speaker.push(text);
    return;
  }
  if (what === "ended") ended(of);
  if (of === branch) render();
}

function ended(of) {
  loadSessions();
  if (of !== branch) return;
  const turn = of.turns.at(-1);
  const ends = {done: "The answer has ended.", stopped: "Stopped.", refused: "Not sent.", broken: "The answer broke off."};
  speaker.end(ends[turn?.state] ?? "");
}

function keep(of) {
  if (!store.save(of)) announce("This browser has no more room for texts.");
}

// --- what is done ---
// One at a time, and errors are told.
async function work(action) {
  if (working) return;
  working = true;
  showControls(branch ? chat.running(branch) : null);
  try {
    await action();
  } catch (error) {
    tell(error);
  } finally {
    working = false;
    render();
    loadSessions();
  }
}

async function send(text) {
  const problem = sampling.problem || (branch ? "" : setup.problem);
  if (problem) {
    announce(problem);
    if (sampling.problem) {
      panels.open("details");
      sampling.focusProblem();
    } else {
      byId("setup-centroids").focus();
    }
    return;
  }
  const raw = branch ? !isConversation(branch) : !info.hasChatTemplate;
  if (text.trim() === "" && !(raw && text === "" && branch?.position)) return;
  if (branch && !chat.ready(branch)) {
    announce("First choose what becomes of the last turn.");
    document.querySelector(".problem button")?.focus();
    return;
  }
  byId("notice").replaceChildren();
  if (!branch) {
    let made;
    try {
      made = await chat.create({...setup.kind, system: setup.system, template: info.hasChatTemplate});
    } catch (error) {
      return tell(error);
    }
    show(made);
  }
  message.value = "";
  fit();
  run(text);
}

// Text that was withdrawn before anything came of it goes back to where it was written.
async function run(text) {
  const of = branch;
  const count = of.turns.length;
  transcript.toEnd();
  await chat.send(of, text);
  if (of === branch && of.turns.length === count && message.value === "") {
    message.value = text;
    fit();
  }
}

function open(id) {
  panels.close();
  work(async () => {
    show(await chat.open(id, info.hasChatTemplate));
    if (branch.gone && branch.turns.length) offerRestore();
    message.focus();
  });
}

function offerRestore() {
  const last = branch.turns.at(-1);
  if (["broken", "refused"].includes(last.state)) return;  // it says so itself
  const restore = h("button", {type: "button", class: "primary", on: {click: actions.restore}}, "Go on in a new session");
  replace(byId("notice"), h("div", {class: "problem"},
          h("p", {}, `${GONE} ${RESTORABLE}`),
          h("div", {class: "buttons"}, restore)));
}

function startNew() {
  panels.close();
  show(null);
  message.focus();
}

function remove(id, title) {
  confirmed("Delete this session?",
            `“${title}” goes from the server, and its text from this browser. Its branches stay.`, "Delete", () => work(async () => {
    await chat.remove(id);
    if (branch?.session === id) show(null);
    announce("Deleted.");
  }));
}

// Each ends when the session is where the turn goes on; the turn itself runs beside what else is done.
const actions = {
  edit: (index, text) => work(async () => {
    await chat.backTo(branch, index);
    run(text);
  }),
  editInBranch: (index, text) => work(async () => {
    show(await chat.fork(branch, index));
    run(text);
  }),
  regenerate: (index) => actions.edit(index, branch.turns[index].user),
  branch: (count) => work(async () => {
    show(await chat.fork(branch, count));
    announce("A branch of its own. What you send goes there.");
    message.focus();
  }),
  resend: () => work(async () => { run(await chat.takeBack(branch)); }),
  keep: () => work(() => chat.keep(branch)),
  branchOff: () => work(async () => {
    const {copy, text} = await chat.branchOff(branch);
    show(copy);
    run(text);
  }),
  adopt: () => work(async () => {
    message.value ||= branch.turns.at(-1).user;
    fit();
    show(await chat.open(branch.session, info.hasChatTemplate));
  }),
  restore: () => work(async () => {
    const {fresh, unsent} = await chat.restore(branch);
    show(fresh);
    if (unsent !== null) run(unsent);
  }),
  show: open,
};
const transcript = new Transcript(store, actions);

function otherBranch(step) {
  const family = branch ? store.family(branch) : [];
  const to = family[family.indexOf(branch) + step];
  if (to) open(to.session);
}

function regenerateLast() {
  const last = branch?.turns.length - 1;
  const turn = branch?.turns[last];
  if (turn && turn.start !== null && ["done", "stopped"].includes(turn.state)) actions.regenerate(last);
}

// --- what is asked again and again ---
async function loadSessions() {
  try {
    showSessions(await api.sessions(), store, branch?.session, {open, remove});
  } catch { /* the server's load says that it cannot be reached */ }
}

let before = null;
async function loadStatus() {
  try {
    const status = await api.status();
    const now = performance.now();
    const speeds = ["promptTokens", "generatedTokens"].map((name) => before
        ? Math.max(0, Number(status[name] ?? 0) - Number(before.status[name] ?? 0)) / ((now - before.now) / 1000) : 0);
    before = {now, status};
    showLoad(status, speeds);
  } catch (error) {
    byId("load-note").textContent = explain(error);
  }
}

function every(ms, action) {
  setInterval(() => { if (!document.hidden && info) action(); }, ms);
}

// --- the page ---
function fit() {
  message.style.height = "auto";
  message.style.height = `${message.scrollHeight + 2}px`;
}

const panels = drawers();
byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!working && info && !(branch && chat.running(branch))) work(() => send(message.value));
});
byId("stop").addEventListener("click", () => { chat.stop(branch); message.focus(); });
byId("new-conversation").addEventListener("click", startNew);
message.addEventListener("input", () => {
  fit();
  nameSend(document.body.classList.contains("raw"));
});
message.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  if (matchMedia("(pointer: coarse)").matches && !event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  byId("composer").requestSubmit();
});
byId("keep-texts").checked = store.keep;
byId("keep-texts").addEventListener("change", (event) => { store.keep = event.target.checked; });
byId("forget-token").addEventListener("click", () => {
  sessionStorage.removeItem("ovq.token");
  location.reload();
});
addEventListener("pagehide", () => { if (branch && chat.running(branch)) store.save(branch); });
shortcuts({
  n: ["New conversation", startNew],
  l: ["Sessions", () => panels.open("sessions")],
  m: ["Memory, branches, sampling", () => panels.open("details")],
  r: ["Another answer in place of the last one", regenerateLast],
  k: ["Branch before", () => otherBranch(-1)],
  j: ["Next branch", () => otherBranch(1)],
}, () => {
  if (branch && chat.running(branch)) chat.stop(branch);
  else if (!panels.close()) message.focus();
});

async function start() {
  render();
  try {
    info = await api.info({positions: [1, 1000]});
  } catch (error) {
    tell(error);
    const again = h("button", {type: "button", class: "primary", on: {click: start}}, "Try again");
    byId("notice").querySelector(".buttons").replaceChildren(again);
    return;
  }
  byId("notice").replaceChildren();
  byId("forget-token").hidden = sessionStorage.getItem("ovq.token") === null;
  transcript.name = info.name;
  byId("model-line").textContent = `${info.name}, ${count(info.parameters)} parameters`;
  byId("model-note").textContent = info.hasChatTemplate
      ? "Messages go through the model’s chat template."
      : info.hasTokenizer ? "This model has no chat template: it continues the text that you give it."
                           : "This model has no tokenizer, so it cannot be written to here.";
  await setup.show(info);
  const last = store.open;
  if (last) show(await chat.open(last, info.hasChatTemplate).catch(() => null));
  else show(null);
  if (branch?.gone && branch.turns.length) offerRestore();
  loadSessions();
  loadStatus();
}
every(STATUS_EVERY_MS, loadStatus);
every(SESSIONS_EVERY_MS, loadSessions);
start();
