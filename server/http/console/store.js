// What this browser knows of sessions: their texts, which the server, keeping tokens only, cannot tell.
//
// A branch is a session with its turns. A fork copies the turns with their ids, so which turns two branches
// of a conversation share follows from the ids.
//
// The texts live as long as the tab (sessionStorage), or until they are deleted (localStorage), as the
// person chooses.

const PREFIX = "ovq.branch.";
const KEEP = "ovq.keep";
const SETTINGS = "ovq.settings";

export function randomId() { return crypto.getRandomValues(new Uint32Array(2)).join("-"); }

// `start`: the session's position before it. `seen`: tokens of the answer that have come.
// `state`: waiting, running, done, stopped (the session holds what is shown), broken (nobody knows what the
// session holds), refused (it holds nothing of this), or gap (tokens whose text this browser never had).
export function newTurn(user, start) {
  return {id: randomId(), user, start, answer: "", state: "waiting", seen: 0};
}

// Turns that both begin with.
export function sharedTurns(one, two) {
  let count = 0;
  while (count < one.turns.length && one.turns[count].id === two.turns[count]?.id) ++count;
  return count;
}

export class Store {
  constructor() {
    this.branches = new Map();
    for (const storage of [sessionStorage, localStorage]) {
      for (const key of Object.keys(storage)) {
        if (!key.startsWith(PREFIX)) continue;
        const branch = this.#parse(storage.getItem(key));
        if (branch) this.branches.set(branch.session, branch);
      }
    }
  }

  // Another version's notes, or someone else's, are none.
  #parse(text) {
    try {
      const branch = JSON.parse(text);
      if (!Array.isArray(branch.turns) || typeof branch.session !== "string") return null;
      // A page that went away in the middle of a turn does not know how it ended.
      for (const turn of branch.turns) {
        if (turn.state === "waiting" || turn.state === "running") turn.state = "broken";
      }
      return branch;
    } catch {
      return null;
    }
  }

  get keep() { return localStorage.getItem(KEEP) === "yes"; }
  set keep(keep) {
    localStorage.setItem(KEEP, keep ? "yes" : "no");
    for (const branch of this.branches.values()) this.save(branch);
  }

  // False if the browser has no room for it.
  save(branch) {
    this.branches.set(branch.session, branch);
    const [to, other] = this.keep ? [localStorage, sessionStorage] : [sessionStorage, localStorage];
    other.removeItem(PREFIX + branch.session);
    try {
      to.setItem(PREFIX + branch.session, JSON.stringify(branch));
      return true;
    } catch {
      return false;
    }
  }

  remove(session) {
    this.branches.delete(session);
    sessionStorage.removeItem(PREFIX + session);
    localStorage.removeItem(PREFIX + session);
  }

  // The branches of its conversation, the oldest first.
  family(branch) {
    return [...this.branches.values()].filter((other) => other.root === branch.root)
        .sort((a, b) => a.created - b.created);
  }

  get settings() {
    try {
      return JSON.parse(localStorage.getItem(SETTINGS)) ?? {};
    } catch {
      return {};
    }
  }
  set settings(settings) { localStorage.setItem(SETTINGS, JSON.stringify(settings)); }

  // Which session the tab shows.
  get open() { return sessionStorage.getItem("ovq.open"); }
  set open(session) {
    if (session) sessionStorage.setItem("ovq.open", session);
    else sessionStorage.removeItem("ovq.open");
  }
}
