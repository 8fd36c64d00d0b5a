// What is around the conversation: drawers on narrow screens, dialogs, the keyboard.
import {byId, h} from "./dom.js";

const NARROW = matchMedia("(max-width: 1099px)");

// The panels beside the conversation. On a narrow screen one of them at a time lies over it, and nothing
// behind it can be reached.
export function drawers() {
  const panels = {sessions: byId("sessions-panel"), details: byId("details-panel")};
  let opened = null;
  let back = null;

  function apply() {
    if (!NARROW.matches) opened = null;
    for (const [name, panel] of Object.entries(panels)) {
      panel.inert = NARROW.matches && name !== opened;
      panel.classList.toggle("is-open", name === opened);
      byId(`open-${name}`).setAttribute("aria-expanded", String(name === opened));
    }
    document.querySelector("main").inert = opened !== null;
  }
  function open(name) {
    if (NARROW.matches) {
      back = document.activeElement;
      opened = name;
      apply();
    }
    panels[name].querySelector("button:not([hidden]), input")?.focus();
  }
  function close() {
    if (opened === null) return false;
    opened = null;
    apply();
    back?.focus();
    return true;
  }
  for (const name of Object.keys(panels)) {
    byId(`open-${name}`).addEventListener("click", () => open(name));
    byId(`close-${name}`).addEventListener("click", close);
  }
  document.addEventListener("click", (event) => {
    if (opened !== null && event.target === document.querySelector(".app")) close();
  });
  NARROW.addEventListener("change", apply);
  apply();
  return {open, close};
}

export function confirmed(title, note, verb, action) {
  const dialog = byId("confirm-dialog");
  byId("confirm-title").textContent = title;
  byId("confirm-note").textContent = note;
  byId("confirm-yes").textContent = verb;
  dialog.returnValue = "no";
  dialog.onclose = () => { if (dialog.returnValue === "yes") action(); };
  dialog.showModal();
}

// Resolves to the token, or to null if there is none.
export function askForToken(wrong) {
  const dialog = byId("token-dialog");
  byId("token-note").textContent = (wrong ? "The server does not take this token. " : "The server asks for a token. ") +
      "It is kept until this tab is closed.";
  byId("token").value = "";
  return new Promise((resolve) => {
    let given = null;
    byId("token-form").onsubmit = () => { given = byId("token").value.trim() || null; };
    byId("token-cancel").onclick = () => dialog.close();
    dialog.onclose = () => resolve(given);
    if (!dialog.open) dialog.showModal();
  });
}

// `keys`: {letter: [what it does, action]}, with Alt. `escape` is for when no dialog is open.
export function shortcuts(keys, escape) {
  const rows = [[["Enter"], "Send"], [["Shift", "Enter"], "A new line"],
                [["Ctrl", "Enter"], "Send, also what is being edited"],
                [["Esc"], "Stop the answer; else to the message"],
                ...Object.entries(keys).map(([key, [what]]) => [["Alt", key.toUpperCase()], what]),
                [["Alt", "/"], "This list"]];
  byId("shortcuts").replaceChildren(...rows.flatMap(([names, what]) => [
    h("dt", {}, names.flatMap((name, i) => i ? [" + ", h("kbd", {}, name)] : [h("kbd", {}, name)])), h("dd", {}, what)]));
  const help = () => byId("shortcuts-dialog").showModal();
  byId("show-shortcuts").addEventListener("click", help);
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey) return;
    // With Alt some keyboards write another letter than the key's own.
    const key = event.code.startsWith("Key") ? event.code.slice(3).toLowerCase() : event.key;
    let action;
    if (event.key === "Escape" && !event.altKey) action = escape;
    else if (event.altKey && (event.key === "/" || event.code === "Slash")) action = help;
    else if (event.altKey && keys[key]) action = keys[key][1];
    if (!action) return;
    event.preventDefault();
    action();
  });
}
