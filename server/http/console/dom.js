// Small helpers around the document. Text goes in as text, always.

// An element: attributes by name, `on` a map of listeners, children nodes or texts.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  set(element, attributes);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  set(element, attributes);
  element.append(...children.flat());
  return element;
}

function set(element, {on = {}, ...attributes}) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const [name, listener] of Object.entries(on)) element.addEventListener(name, listener);
}

export function byId(id) { return document.getElementById(id); }

// Replaces the children, and keeps the keyboard where it was: on the element with the same data-key.
export function replace(parent, ...children) {
  const key = parent.contains(document.activeElement)
      ? document.activeElement.closest("[data-key]")?.dataset.key : undefined;
  const now = children.flat().filter((child) => child !== null && child !== undefined);
  if (now.length === parent.childNodes.length && now.every((child, i) => child === parent.childNodes[i])) return;
  parent.replaceChildren(...now);
  if (key !== undefined) parent.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
}

// The same for what is shown again and again, with listeners that follow from what can be seen of it: what
// looks the same stays, so that a click or a reader in the middle of it is not lost.
export function refresh(parent, children) {
  replace(parent, children.map((child, i) => parent.children[i]?.isEqualNode(child) ? parent.children[i] : child));
}

// What a screen reader says of something that has happened.
export function announce(text) {
  const region = byId("announcer");
  region.append(h("p", {}, text));
  while (region.childElementCount > 20) region.firstChild.remove();
}

// Speaks streamed text in whole sentences or lines, not in tokens.
export class Speaker {
  #waiting = "";

  push(text) {
    this.#waiting += text;
    const end = Math.max(...[". ", "! ", "? ", "\n"].map((mark) => this.#waiting.lastIndexOf(mark)));
    if (end > 0 && (end > 80 || this.#waiting[end] === "\n")) {
      announce(this.#waiting.slice(0, end + 1));
      this.#waiting = this.#waiting.slice(end + 1);
    }
  }

  end(text) {
    if (this.#waiting.trim()) announce(this.#waiting);
    this.#waiting = "";
    announce(text);
  }
}
