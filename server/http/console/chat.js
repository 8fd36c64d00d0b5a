// What turns do to sessions: sending, stopping, going back, branching. No document here.
import {Broken, Refused} from "./api.js";
import {newTurn, randomId} from "./store.js";
import {explain, seconds} from "./text.js";

const BUSY_WAITS_MS = [0, 20, 50, 100, 200, 400, 800, 1600, 3200, 6400];

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function messagesOf(branch, turns) {
  const messages = branch.system ? [{role: "system", content: branch.system}] : [];
  for (const turn of turns) {
    messages.push({role: "user", content: turn.user}, {role: "assistant", content: turn.answer});
  }
  return messages;
}

export const hasGap = (branch) => branch.turns.some((turn) => turn.state === "gap");
// Whether messages go through the model's chat template; behind tokens without a text they cannot.
export const isConversation = (branch) => branch.template && !hasGap(branch);

// What the turn sends, being the last one of its branch.
function promptOf(branch, turn) {
  if (!isConversation(branch)) return turn.user === "" ? undefined : {text: turn.user};
  const before = branch.turns.slice(0, -1);
  const known = before.length ? messagesOf(branch, before) : [];
  const messages = [...messagesOf(branch, before), {role: "user", content: turn.user}];
  return {conversation: {messages, known: known.length}};
}

function gap(start, end) { return {...newTurn("", start), state: "gap", end}; }

export class Chat {
  // `settings()`: {sampling, stop} of the next turn. `changed(branch, what)` is told of "turns" that look
  // different, of an "event" of a running one, and that one has "ended".
  constructor(api, store, settings, changed) {
    this.api = api;
    this.store = store;
    this.settings = settings;
    this.changed = changed;
    this.runs = new Map();  // session: {turn, controller}
  }

  running(branch) { return this.runs.get(branch.session)?.turn ?? null; }

  // --- sessions ---
  async create({memory, maxCentroids, system, template}) {
    const body = {};
    if (memory) body.memory = memory;
    if (maxCentroids) body.maxCentroids = maxCentroids;
    const branch = this.#branchOf(await this.api.create(body), template);
    branch.system = system;
    this.store.save(branch);
    return branch;
  }

  #branchOf(session, template) {
    return {session: session.sessionId, root: randomId(), created: Date.now(), turns: [], system: "",
            template, memory: session.memory, maxCentroids: session.maxCentroids,
            position: Number(session.position ?? 0), bytes: Number(session.stateBytes ?? 0)};
  }

  // The branch of a session as the server has it now; what this browser knows of it is held to that.
  async open(id, template) {
    const known = this.store.branches.get(id);
    let session;
    try {
      session = await this.api.session(id);
    } catch (error) {
      if (known && error.status === 404) known.gone = true;
      if (known) return known;
      throw error;
    }
    const branch = known ?? this.#branchOf(session, template);
    delete branch.gone;
    if (!known) branch.position = 0;
    const unsettled = ["waiting", "running", "broken"].includes(branch.turns.at(-1)?.state);
    if (!this.running(branch) && !unsettled) this.#follow(branch, session);
    this.store.save(branch);
    return branch;
  }

  // Turns that the session no longer has go; tokens that came from elsewhere are a gap.
  #follow(branch, session) {
    const position = Number(session.position ?? 0);
    branch.bytes = Number(session.stateBytes ?? 0);
    if (position === branch.position) return;
    const kept = branch.turns.findLastIndex((turn) => turn.end !== undefined && turn.end <= position);
    branch.turns.length = kept + 1;
    const end = branch.turns.at(-1)?.end ?? 0;
    if (position > end) branch.turns.push(gap(end, position));
    branch.position = position;
  }

  async remove(id) {
    this.runs.get(id)?.controller.abort();
    try {
      await this.api.remove(id);
    } catch (error) {
      if (error.status !== 404) throw error;
    }
    this.store.remove(id);
  }

  // A stopped call lets its session go within a step of the server.
  async #idle(branch) {
    for (const wait of BUSY_WAITS_MS) {
      await sleep(wait);
      const session = await this.api.session(branch.session);
      if (!session.busy) return session;
    }
    throw new Refused(409, {message: "another call is still using the session"});
  }

  async #rewind(branch, position) {
    const session = await this.api.rewind(branch.session, position);
    branch.position = position;
    branch.bytes = Number(session.stateBytes ?? 0);
  }

  // --- turns ---
  // Resolves when the turn is over, however it ended.
  send(branch, text) {
    const turn = newTurn(text, branch.position);
    branch.turns.push(turn);
    return this.#run(branch, turn);
  }

  stop(branch) { this.runs.get(branch.session)?.controller.abort(); }

  // To before the turn, which goes with all behind it.
  async backTo(branch, index) {
    await this.#rewind(branch, branch.turns[index].start);
    branch.turns.length = index;
    this.store.save(branch);
  }

  // A session of its own that has the first `count` turns.
  async fork(branch, count) {
    const position = branch.turns[count]?.start ?? branch.position;
    const made = await this.api.fork(branch.session);
    const copy = {...branch, session: made.sessionId, created: Date.now(),
                  turns: structuredClone(branch.turns.slice(0, count)),
                  bytes: Number(made.stateBytes ?? 0)};
    try {
      if (position !== Number(made.position ?? 0)) await this.#rewind(copy, position);
    } catch (error) {
      await this.api.remove(copy.session).catch(() => {});
      throw error;
    }
    copy.position = position;
    this.store.save(copy);
    return copy;
  }

  // Whether a turn may follow: not while somebody has to say what becomes of the last one. A turn of which
  // the session holds nothing gives way.
  ready(branch) {
    const last = branch.turns.at(-1);
    if (last?.state === "broken" || branch.gone) return false;
    if (last?.state !== "refused") return true;
    if (last.found !== undefined || last.rewritten) return false;
    branch.turns.pop();
    return true;
  }

  // Takes back the last turn, whose fate is unknown or which was refused, and returns its text: whatever
  // the server did of it is gone when it is sent again from the position that it began at.
  async takeBack(branch) {
    const turn = branch.turns.at(-1);
    const session = await this.#idle(branch);
    if (Number(session.position ?? 0) > turn.start) await this.#rewind(branch, turn.start);
    branch.turns.pop();
    branch.position = turn.start;
    this.store.save(branch);
    return turn.user;
  }

  // The session goes back to the last token that was seen of the turn.
  async keep(branch) {
    await this.#settle(branch, branch.turns.at(-1));
    this.store.save(branch);
  }

  // A branch without the last turn, whose text it returns, where the session has gone on elsewhere.
  async branchOff(branch) {
    const turn = branch.turns.at(-1);
    const copy = await this.fork(branch, branch.turns.length - 1);
    branch.turns.pop();
    branch.turns.push(gap(turn.start, turn.found));
    branch.position = turn.found;
    this.store.save(branch);
    return {copy, text: turn.user};
  }

  // A new session that has read what the texts say, turn by turn, in place of one that is gone.
  async restore(branch) {
    const last = branch.turns.at(-1);
    const open = last && last.state !== "done" && last.state !== "stopped" ? last : null;
    const fresh = await this.create(branch);
    try {
      for (const turn of branch.turns) {
        if (turn === open || turn.state === "gap") continue;
        const copy = {...turn, start: fresh.position, answer: ""};
        fresh.turns.push(copy);
        await this.#read(fresh, promptOf(fresh, copy));
        copy.answer = turn.answer;
        if (copy.answer) await this.#read(fresh, {text: copy.answer});  // as if it had just been given
        copy.end = fresh.position;
      }
    } catch (error) {
      await this.remove(fresh.session).catch(() => {});
      throw error;
    }
    fresh.root = branch.root;
    this.store.remove(branch.session);
    this.store.save(fresh);
    return {fresh, unsent: open?.user ?? null};
  }

  async #read(branch, prompt) {
    if (!prompt) return;
    const body = {prompt, stop: {maxTokens: 0}};
    for await (const {finished} of this.api.generate(branch.session, body, new AbortController().signal)) {
      if (finished) branch.position = Number(finished.usage.position);
    }
  }

  async #run(branch, turn) {
    const controller = new AbortController();
    this.runs.set(branch.session, {turn, controller});
    this.store.save(branch);
    this.changed(branch, "turns");
    const {sampling, stop} = this.settings();
    const body = {sampling, stop, prompt: promptOf(branch, turn), expectedPosition: String(turn.start)};
    const begin = performance.now();
    try {
      for await (const event of this.api.generate(branch.session, body, controller.signal)) {
        this.#take(branch, turn, event, (performance.now() - begin) / 1000);
      }
    } catch (error) {
      await this.#fail(branch, turn, error, controller.signal.aborted);
    }
    this.runs.delete(branch.session);
    // It may have been deleted meanwhile.
    if (this.store.branches.has(branch.session)) this.store.save(branch);
    this.changed(branch, "ended");
  }

  #take(branch, turn, {started, chunk, finished}, since) {
    if (started) {
      turn.state = "running";
      turn.promptTokens = Number(started.promptTokens ?? 0);
      turn.seed = started.seed ?? "0";
    }
    if (chunk) {
      turn.firstAfter ??= since;
      turn.answer += chunk.text ?? "";
      turn.seen += chunk.tokenIds?.length ?? 0;
      turn.took = since - turn.firstAfter;
    }
    if (finished) {
      const usage = finished.usage ?? {};
      turn.state = "done";
      turn.reason = finished.reason;
      turn.end = Number(usage.position ?? 0);
      turn.bytes = Number(usage.stateBytes ?? 0);
      turn.took = seconds(usage.decodeTime) || turn.took;  // not what the way here took
      branch.merged = Number(usage.mergedTokens ?? 0);
      branch.bytes = turn.bytes;
    }
    branch.position = turn.end ?? turn.start + (turn.promptTokens ?? 0) + turn.seen;
    this.changed(branch, "event", chunk?.text ?? "");
  }

  async #fail(branch, turn, error, stopped) {
    try {
      if (stopped) return await this.#settle(branch, turn);
    } catch (why) {
      error = why instanceof Refused ? why : new Broken("The connection broke while the answer was being stopped.");
    }
    turn.why = explain(error);
    // Before it started a refusal is the whole story.
    turn.state = error instanceof Refused && turn.promptTokens === undefined ? "refused" : "broken";
    if (error.status === 404) branch.gone = true;
    if (turn.state !== "refused") return;
    branch.position = turn.start;
    // Only in a new session the template may write what came before differently.
    turn.rewritten = error.field.endsWith(".known");
    if (error.status === 409) turn.found = await this.#elsewhere(branch, turn);
  }

  // Where the session is, if that is not where the turn was to begin.
  async #elsewhere(branch, turn) {
    const session = await this.api.session(branch.session).catch(() => null);
    const position = Number(session?.position ?? 0);
    return session === null || session.busy || position === turn.start ? undefined : position;
  }

  // Takes the session to just what the page shows of the turn. Where that is nothing, the turn goes, too.
  async #settle(branch, turn) {
    const position = Number((await this.#idle(branch)).position ?? 0);
    const shown = turn.seen > 0 ? turn.start + turn.promptTokens + turn.seen : turn.start;
    if (position > shown) {
      await this.#rewind(branch, shown);
    } else if (position < shown) {
      throw new Refused(409, {message: "the session has lost a part of this answer"});
    }
    branch.position = shown;
    turn.state = "stopped";
    turn.end = shown;
    if (turn.seen === 0) branch.turns.splice(branch.turns.indexOf(turn), 1);
  }
}
