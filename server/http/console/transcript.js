// The turns of a branch, as they are and as they grow.
import {byId, h, replace} from "./dom.js";
import {hasGap, isConversation} from "./chat.js";
import {sharedTurns} from "./store.js";
import {bytes, duration, number, rate, RESTORABLE, tokens} from "./text.js";

// Fenced blocks stand apart; everything else stays as it was written.
function saidIn(text, raw) {
  if (raw || !text.includes("```")) return [text];
  return text.split(/^```.*\n?/m).map((part, i) =>
    i % 2 ? h("pre", {tabindex: 0}, h("code", {}, part.replace(/\n$/, ""))) : part);
}

function footOf(turn) {
  const parts = [];
  if (turn.seen) parts.push(tokens(turn.seen));
  if (turn.seen > 1 && turn.took > 0) parts.push(rate((turn.seen - 1) / turn.took));  // the first one had the prompt's time
  if (turn.firstAfter !== undefined) parts.push(`first after ${duration(turn.firstAfter)}`);
  if (turn.bytes) parts.push(bytes(turn.bytes));
  if (turn.state === "stopped") parts.push("stopped");
  if (turn.state === "done" && turn.answer === "") parts.push("no text");
  if (turn.reason === "FINISH_REASON_LENGTH") parts.push("at its limit");
  return parts.join(" · ");
}

export class Transcript {
  // `actions`: edit(index, text), editInBranch(index, text), regenerate(index), branch(count),
  // show(branch), and for problems resend, keep, branchOff, adopt, restore.
  constructor(store, actions) {
    this.store = store;
    this.actions = actions;
    this.list = byId("turns");
    this.scroller = byId("transcript");
    this.editing = null;  // id of a turn
    this.name = "Model";
    this.follows = true;
    this.scroller.addEventListener("scroll", () => {
      const {scrollHeight, scrollTop, clientHeight} = this.scroller;
      this.follows = scrollHeight - scrollTop - clientHeight < 48;
    });
  }

  show(branch, running) {
    this.branch = branch;
    this.running = running;
    this.unseen = "";  // text of the running turn that is not drawn yet
    const raw = branch !== null && !isConversation(branch);
    document.body.classList.toggle("raw", raw);
    replace(this.list, branch ? [this.#system(branch), ...branch.turns.map((turn, i) => this.#turn(turn, i, raw)),
                                 this.#end(branch)] : []);
    this.#stick();
  }

  #system(branch) {
    if (!branch.system || !isConversation(branch)) return null;
    return h("li", {class: "system"}, h("p", {class: "who"}, h("b", {}, "System")),
             h("div", {class: "said"}, branch.system));
  }

  #end(branch) {
    const fork = this.#fork(branch.turns.length);
    return fork ? h("li", {}, fork) : null;
  }

  toEnd() {
    this.follows = true;
    this.#stick();
  }

  #stick() {
    if (this.follows) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  // More text of the running turn, which is the last one; drawn once a frame.
  grow(branch, text) {
    if (branch !== this.branch) return;
    this.unseen += text;
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.#draw();
    });
  }

  #draw() {
    const last = this.list.querySelector("li[data-running]");
    const said = last?.querySelector(".answer .said");
    if (!said) return;
    said.append(this.unseen);
    said.normalize();
    this.unseen = "";
    last.querySelector(".foot .note").textContent = footOf(this.branch.turns.at(-1));
    this.#stick();
  }

  edit(index) {
    this.editing = this.branch.turns[index].id;
    this.show(this.branch, this.running);
    this.list.querySelector(".edit textarea")?.focus();
  }

  #stopEditing(index) {
    this.editing = null;
    this.show(this.branch, this.running);
    this.list.querySelector(`[data-key="edit-${index}"]`)?.focus();
  }

  #turn(turn, index, raw) {
    const where = this.#fork(index);
    if (turn.state === "gap") {
      return h("li", {}, where, h("p", {class: "gap"},
               `${tokens(turn.end - turn.start)} that this browser has no text of, ` +
               `from ${number(turn.start)} to ${number(turn.end)}. The model has read them.`));
    }
    const live = turn === this.running;
    return h("li", {"data-running": live}, where, this.#user(turn, index, raw), this.#answer(turn, live, raw),
             this.#foot(turn, index), live ? null : this.#problem(turn));
  }

  #user(turn, index, raw) {
    const at = h("span", {title: "Tokens before this turn"}, `at ${number(turn.start)}`);
    const who = h("p", {class: "who"}, h("b", {}, "You"), at);
    if (this.editing === turn.id && !this.running) return this.#editor(turn, index, who);
    if (turn.user === "") return null;  // just more of what there was
    return h("div", {class: "user"}, who, h("div", {class: "said"}, ...saidIn(turn.user, raw)));
  }

  #editor(turn, index, who) {
    const text = h("textarea", {rows: Math.min(12, turn.user.split("\n").length + 1), "aria-label": "Your text"});
    text.value = turn.user;
    const cancel = () => this.#stopEditing(index);
    const send = (how) => {
      this.editing = null;
      how(index, text.value);
    };
    text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.ctrlKey) send(this.actions.edit);
      if (event.key === "Escape") cancel();
      if (event.key === "Enter" && event.ctrlKey || event.key === "Escape") {
        event.preventDefault();
        event.stopPropagation();
      }
    });
    return h("div", {class: "user edit"}, who, text,
             h("p", {class: "note"}, "Replacing takes the session back to before this turn: what follows goes. " +
                                     "A branch leaves it as it is."),
             h("div", {class: "buttons"}, h("button", {type: "button", class: "quiet", on: {click: cancel}}, "Cancel"),
               h("button", {type: "button", on: {click: () => send(this.actions.editInBranch)}}, "Send in a branch"),
               h("button", {type: "button", class: "primary", on: {click: () => send(this.actions.edit)}}, "Replace")));
  }

  #answer(turn, live, raw) {
    if (!live && turn.answer === "") return null;
    return h("div", {class: live ? "answer streaming" : "answer"},
             h("p", {class: "who"}, h("b", {}, this.name)),
             h("div", {class: "said"}, ...saidIn(turn.answer, raw || live)));
  }

  #foot(turn, index) {
    const note = h("p", {class: "note"}, footOf(turn));
    if (turn === this.running) return h("div", {class: "foot"}, note);
    const button = (key, label, title, action, possible) =>
      h("button", {type: "button", class: "quiet", "data-key": `${key}-${index}`, title, disabled: !possible,
                   "aria-label": `${label}, turn ${index + 1}`, on: {click: action}}, label);
    const idle = !this.running && !this.branch.gone;
    const back = idle && (turn.state === "done" || turn.state === "stopped");
    const ends = idle && turn.end !== undefined;
    return h("div", {class: "foot"}, note, h("div", {class: "actions"},
      button("edit", "Edit", "Change your text, and send it again from here", () => this.edit(index), back),
      button("again", "Regenerate", "Another answer in place of this one and of what follows",
             () => this.actions.regenerate(index), back),
      button("branch", "Branch", "A session of its own from the end of this turn",
             () => this.actions.branch(index + 1), ends)));
  }

  #problem(turn) {
    if (turn.state !== "broken" && turn.state !== "refused") return null;
    const button = (label, action, main) =>
      h("button", {type: "button", class: main ? "primary" : "", on: {click: action}}, label);
    const {resend, keep, branchOff, adopt, restore} = this.actions;
    const buttons = [];
    let why = turn.why ?? "The page went away before this turn ended.";
    if (this.branch.gone || turn.rewritten) {
      if (!hasGap(this.branch)) {
        why += ` ${RESTORABLE}`;
        buttons.push(button("Go on in a new session", restore, true));
      }
    } else if (turn.state === "broken") {
      why += " The session may hold a part of this turn. Sending it again takes that back first, so nothing " +
             "happens twice.";
      buttons.push(button("Send again", resend, true));
      if (turn.seen) buttons.push(button("Keep what is here", keep));
    } else if (turn.found > turn.start) {
      why = `Someone else has used this session: it has ${tokens(turn.found)}, this page knew ${number(turn.start)}.`;
      buttons.push(button("Send in a branch of what is here", branchOff, true),
                   button("Take theirs back, then send", resend), button("Show what it has", adopt));
    } else if (turn.found !== undefined) {
      why = `Someone else has taken this session back to ${tokens(turn.found)}.`;
      buttons.push(button("Show what it has", adopt, true));
    } else {
      buttons.push(button("Send again", resend, true));
    }
    return h("div", {class: "problem", role: "alert"}, h("p", {}, why), h("div", {class: "buttons"}, buttons));
  }

  // Where branches part after `count` turns: which one this is, and the way to the others.
  #fork(count) {
    const others = this.store.family(this.branch)
        .filter((other) => other === this.branch || sharedTurns(this.branch, other) === count);
    if (others.length < 2) return null;
    const place = others.indexOf(this.branch);
    const go = (step, label, sign) => {
      const to = others[place + step];
      return h("button", {type: "button", class: "quiet", disabled: !to, "aria-label": label,
                          "data-key": `fork-${count}-${step}`, on: {click: () => this.actions.show(to.session)}}, sign);
    };
    return h("div", {class: "fork"}, go(-1, "Branch before", "‹"),
             h("span", {}, `Branch ${place + 1} of ${others.length} from here`), go(1, "Next branch", "›"));
  }
}
