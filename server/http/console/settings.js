// How answers are drawn, and what a new session keeps: fields of the page to fields of requests.
import {byId, h} from "./dom.js";

// Ranges and defaults are those of SamplingParams and StopConditions in proto/ovq/v1/inference.proto.
const FIELDS = [
  {name: "temperature", label: "Temperature", min: 0, max: 100, usual: "1", hint: "0: the likeliest token always"},
  {name: "topP", label: "Top p", min: 0, max: 1, above: true, usual: "1"},
  {name: "topK", label: "Top k", min: 0, max: 2147483647, whole: true, usual: "off"},
  {name: "maxTokens", label: "Tokens at most", min: 1, max: 4294967295, whole: true, usual: "256", stop: true},
  {name: "seed", label: "Seed", min: 0, max: Number.MAX_SAFE_INTEGER, whole: true, usual: "drawn"},
  {name: "minP", label: "Min p", min: 0, max: 1, usual: "0"},
  {name: "typicalP", label: "Typical p", min: 0, max: 1, above: true, usual: "1", more: true},
  {name: "minTokens", label: "Tokens at least", min: 0, max: 4294967295, whole: true, usual: "0", stop: true, more: true},
  {name: "repetitionPenalty", label: "Repetition penalty", min: 0, max: 100, above: true, usual: "1", more: true},
  {name: "presencePenalty", label: "Presence penalty", min: -2, max: 2, usual: "0", more: true},
  {name: "frequencyPenalty", label: "Frequency penalty", min: -2, max: 2, usual: "0", more: true},
];

function wrong(field, text) {
  if (text === "") return "";
  const value = Number(text);
  const low = field.above ? value > field.min : value >= field.min;
  if (Number.isFinite(value) && low && value <= field.max && (!field.whole || Number.isInteger(value))) return "";
  const range = field.max > 1e9 ? `${field.min} or more` : `${field.above ? "above " : ""}${field.min} to ${field.max}`;
  return `${field.label}: expected ${field.whole ? "a whole number, " : ""}${range}.`;
}

export class Sampling {
  constructor(store) {
    this.store = store;
    const saved = store.settings;
    this.inputs = new Map();
    for (const field of FIELDS) {
      const input = h("input", {type: "text", inputmode: "decimal", name: field.name, placeholder: field.usual,
                                title: field.hint ?? "", autocomplete: "off"});
      input.value = saved[field.name] ?? "";
      this.inputs.set(field.name, input);
      byId(field.more ? "sampling-more" : "sampling-fields").append(h("label", {}, field.label, input));
    }
    this.stops = h("textarea", {rows: 2, name: "stopStrings", placeholder: "One a line, \\n for a line's end"});
    this.stops.value = saved.stopStrings ?? "";
    byId("sampling-more").append(h("label", {class: "wide"}, "Stop at", this.stops));
    byId("sampling").addEventListener("input", () => this.#changed());
    byId("sampling").addEventListener("submit", (event) => event.preventDefault());
    this.#changed();
  }

  // What is wrong with a field, as a sentence; the first of them.
  get problem() {
    return FIELDS.map((field) => wrong(field, this.inputs.get(field.name).value.trim())).find((text) => text) ?? "";
  }

  #changed() {
    const saved = {stopStrings: this.stops.value};
    for (const field of FIELDS) {
      const input = this.inputs.get(field.name);
      saved[field.name] = input.value.trim();
      input.setAttribute("aria-invalid", String(wrong(field, saved[field.name]) !== ""));
    }
    byId("sampling-note").textContent = this.problem;
    this.store.settings = saved;
  }

  focusProblem() {
    const field = FIELDS.find((one) => wrong(one, this.inputs.get(one.name).value.trim()));
    const input = field && this.inputs.get(field.name);
    input?.closest("details")?.setAttribute("open", "");
    input?.focus();
  }

  // {sampling, stop} of a request: what is filled in; the rest has the server's defaults.
  get request() {
    const made = {sampling: {}, stop: {}};
    for (const field of FIELDS) {
      const text = this.inputs.get(field.name).value.trim();
      // Of 64 bits, which JSON has as texts.
      if (text !== "") made[field.stop ? "stop" : "sampling"][field.name] = field.name === "seed" ? text : Number(text);
    }
    const stops = this.stops.value.split("\n").filter((line) => line !== "");
    if (stops.length) made.stop.stopStrings = stops.map((line) => line.replaceAll("\\n", "\n"));
    return made;
  }
}

// The form for a session that is not there yet.
export class Setup {
  constructor(memoryPanel, changed) {
    this.panel = memoryPanel;
    this.memory = byId("setup-memory");
    this.centroids = byId("setup-centroids");
    byId("setup").addEventListener("input", (event) => {
      if (event.target === this.memory) this.centroids.value = "";
      if (event.target !== byId("setup-system")) this.#forecast().then(changed);
    });
    byId("setup").addEventListener("submit", (event) => event.preventDefault());
  }

  async show(info) {
    this.info = info;
    this.memory.replaceChildren(...info.memories.map((name) => h("option", {value: name}, name)));
    this.memory.value = info.memory;
    byId("setup-system-field").hidden = !info.hasChatTemplate;
    await this.#forecast();
  }

  get kind() {
    return {memory: this.memory.value, maxCentroids: this.problem ? undefined : Number(this.centroids.value) || undefined};
  }
  get system() { return this.info?.hasChatTemplate ? byId("setup-system").value.trim() : ""; }
  get problem() {
    if (this.centroids.value === "" && this.centroids.validity.valid) return "";
    const {limits, maxCentroidsLimit: most} = this.about;
    const value = Number(this.centroids.value);
    if (Number.isInteger(value) && value >= limits.minCentroids && value <= most) return "";
    return `Centroids: expected a whole number from ${limits.minCentroids} to ${most}.`;
  }

  async #forecast() {
    const memory = this.memory.value;
    this.about = await this.panel.api.info({memory});
    const bounded = Number(this.about.maxCentroidsLimit ?? 0) > 0;
    this.centroids.disabled = !bounded;
    this.centroids.placeholder = bounded ? `${this.about.defaultMaxCentroids}` : "none";
    this.centroids.min = this.about.limits.minCentroids;
    this.centroids.max = this.about.maxCentroidsLimit ?? 0;
    const problem = this.problem;
    this.centroids.setAttribute("aria-invalid", String(problem !== ""));
    byId("setup-forecast").textContent = problem || await this.panel.forecast(this.kind);
  }
}
