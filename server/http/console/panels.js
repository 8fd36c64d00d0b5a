// The lists beside the conversation: sessions, the server's load, branches.
import {byId, h, refresh, replace} from "./dom.js";
import {sharedTurns} from "./store.js";
import {bytes, duration, excerpt, number, rate, tokens} from "./text.js";

export function titleOf(branch) {
  const first = branch?.turns.find((turn) => turn.user.trim() !== "");
  if (first) return excerpt(first.user);
  return branch ? `Session ${branch.session.slice(0, 8)}` : "New conversation";
}

// Among others: a branch by what it does not share with an older one.
function rowTitle(branch, store) {
  const shared = Math.max(0, ...store.family(branch).filter((other) => other.created < branch.created)
      .map((other) => sharedTurns(branch, other)));
  return shared && branch.turns.length > shared ? `↳ ${branchLabel(branch, shared)}` : titleOf(branch);
}

function sessionRow(id, title, [about, state], current, actions) {
  return h("li", {"aria-current": current ? "true" : null},
    h("button", {type: "button", class: "open", "data-key": `open-${id}`, on: {click: () => actions.open(id)}},
      h("strong", {}, title), h("span", {}, h("span", {}, about), h("span", {}, state))),
    h("button", {type: "button", class: "quiet", "data-key": `delete-${id}`, "aria-label": `Delete session: ${title}`,
                 title: "Delete", on: {click: () => actions.remove(id, title)}}, "×"));
}

// The server's sessions, the one used last first, then those of which only the text is left.
export function showSessions(sessions, store, current, actions) {
  const used = (session) => Date.parse(session.lastUsed ?? session.created);
  const rows = [...sessions].sort((a, b) => used(b) - used(a)).map((session) => {
    const branch = store.branches.get(session.sessionId);
    const title = branch ? rowTitle(branch, store) : `Session ${session.sessionId.slice(0, 8)}`;
    const idle = Math.max(0, (Date.now() - used(session)) / 1000);
    const state = session.busy ? "in use" : session.hibernated ? "on disk" : idle < 60 ? "now" : duration(idle);
    const about = [`${tokens(session.position ?? 0)} · ${bytes(session.stateBytes ?? 0)}`, state];
    return sessionRow(session.sessionId, title, about, session.sessionId === current, actions);
  });
  const alive = new Set(sessions.map((session) => session.sessionId));
  for (const branch of [...store.branches.values()].sort((a, b) => b.created - a.created)) {
    if (alive.has(branch.session) || branch.turns.length === 0) continue;
    rows.push(sessionRow(branch.session, titleOf(branch), ["ended, its text is here", ""],
                         branch.session === current, actions));
  }
  byId("sessions-empty").hidden = rows.length > 0;
  refresh(byId("sessions"), rows);
}

export function showLoad(status, [reading, generating]) {
  const used = Number(status.stateBytesCommitted ?? 0);
  const budget = Number(status.stateBytesBudget ?? 0);
  const figure = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
  replace(byId("load"), figure("Running", number(status.requestsRunning ?? 0)),
          figure("Waiting", number(status.requestsWaiting ?? 0)),
          figure("Reading", rate(reading)), figure("Generating", rate(generating)),
          figure("Memory", `${bytes(used)} of ${bytes(budget)}`));
  const meter = byId("load-meter");
  meter.value = budget ? used / budget : 0;
  meter.textContent = `${bytes(used)} of ${bytes(budget)}`;
  byId("load-note").textContent = status.draining ? "The server is shutting down." : "";
}

// What a branch says of its own: the first text behind what it shares with the one it came from.
function branchLabel(branch, shared) {
  const own = branch.turns.slice(shared).find((turn) => turn.user || turn.answer);
  return own ? excerpt(own.user || own.answer, 44) : "No turn of its own yet";
}

// The branches of a conversation as a tree: each hangs on the oldest that has most in common with it.
export function showBranches(branch, store, open) {
  const family = branch ? store.family(branch) : [];
  const nodes = family.map((one) => ({one, below: [], shared: 0}));
  const roots = [];
  nodes.forEach((node, i) => {
    const shared = nodes.slice(0, i).map((other) => sharedTurns(node.one, other.one));
    node.shared = Math.max(0, ...shared);
    (i === 0 ? roots : nodes[shared.indexOf(node.shared)].below).push(node);
  });
  const item = ({one, below, shared}) => h("li", {},
    h("button", {type: "button", "aria-current": one === branch ? "true" : null, "data-key": `branch-${one.session}`,
                 on: {click: () => open(one.session)}},
      h("strong", {}, branchLabel(one, shared)), h("span", {}, number(one.position)),
      h("span", {}, shared ? `from turn ${shared}` : one === family[0] ? "the first" : "from the beginning")),
    below.length ? h("ul", {}, below.map(item)) : null);
  refresh(byId("branches"), family.length > 1 ? roots.map(item) : []);
  byId("branches-note").textContent = family.length > 1 ? ""
      : "One so far. Branch, at the end of a turn, makes another session that goes on from there.";
}
