// A session's bytes beside what a full KV cache would hold, as the text grows.
import {byId, h, replace, svg} from "./dom.js";
import {bytes, number, ratio, tokens} from "./text.js";

const POINTS = 96;  // that a curve is asked for at
const BOX = {left: 4, right: 316, top: 16, bottom: 146};
const LENGTHS = [1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216];

// The bytes at some lengths, from GetModelInfo. A session's grow in blocks, so between two lengths they are
// those of the lesser one.
export class Curve {
  constructor(info) {
    const sizes = info.stateSizes.map((size) => ({
      position: Number(size.position), state: Number(size.stateBytes ?? 0),
      cache: Number(size.fullKvCacheBytes ?? 0)}));
    this.points = [{position: 0, state: 0, cache: 0}, ...sizes];
    this.end = sizes.at(-1).position;
    this.perToken = sizes.at(-1).cache / this.end;
    this.cap = Number(info.stateBytesCap ?? 0);
  }

  state(position) {
    return (this.points.findLast((point) => point.position <= position && point.position > 0) ?? this.points[1]).state;
  }

  cache(position) { return this.perToken * position; }

  // From where on the session is smaller than the cache; undefined if it is not within the curve.
  crossing() {
    for (let i = this.points.length - 1; i > 0; --i) {
      const [a, b] = [this.points[i - 1], this.points[i]];
      const [da, db] = [a.cache - a.state, b.cache - b.state];
      if (db <= 0) return undefined;
      if (da <= 0 && i > 1) return a.position + (b.position - a.position) * -da / (db - da);
    }
    return 1;
  }
}

export class MemoryPanel {
  constructor(api) {
    this.api = api;
    this.curves = new Map();
    this.scale = 0;
    byId("scale").addEventListener("change", (event) => {
      this.scale = Number(event.target.value);
      this.#update();
    });
  }

  // What a session of this kind holds at lengths up to `end`.
  async curve({memory, maxCentroids}, end, steps = POINTS) {
    const key = `${memory}/${maxCentroids}/${end}/${steps}`;
    let curve = this.curves.get(key);
    if (!curve) {
      const at = (i) => steps === POINTS ? Math.ceil(end * i / steps) : Math.ceil(end ** (i / steps));
      const positions = [...new Set(Array.from({length: steps}, (_, i) => at(i + 1)))];
      curve = new Curve(await this.api.info({positions, memory, maxCentroids}));
      this.curves.set(key, curve);
    }
    return curve;
  }

  // `kind`: {memory, maxCentroids}; `measured`: the session's bytes at `position`, if they are known;
  // `merged`: tokens that share a row with others.
  show(kind, {position = 0, bytes: measured, merged, turns = []}) {
    this.kind = kind;
    this.merged = merged;
    this.position = position;
    this.measured = measured;
    this.turns = turns.filter((turn) => turn.bytes && turn.end !== undefined);
    return this.#update();
  }

  // The text has grown: drawn once a frame.
  grow(position) {
    this.position = position;
    this.measured = undefined;
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = undefined;
      this.#update();
    });
  }

  async #update() {
    if (!this.kind) return;
    const {kind, position} = this;
    const shown = Math.max(this.scale, LENGTHS.find((length) => length >= position * 1.05) ?? position * 2);
    try {
      // Two curves: what is drawn, and where the two lines meet, wherever that is.
      const [curve, far] = await Promise.all([this.curve(kind, shown), this.curve(kind, LENGTHS.at(-1), 200)]);
      if (kind !== this.kind || position !== this.position) return;  // another one is under way
      this.#draw(curve, shown);
      this.#tell(curve, far);
    } catch {
      byId("memory-note").textContent = "The server did not say what a session holds.";
    }
  }

  #draw(curve, shown) {
    const most = Math.max(curve.cache(shown), curve.state(shown), 1);
    const x = (position) => BOX.left + (BOX.right - BOX.left) * position / shown;
    const y = (amount) => BOX.bottom - (BOX.bottom - BOX.top) * amount / most;
    const line = (points) => `M${points.map((point) => point.map((place) => place.toFixed(1)).join(" ")).join("L")}`;
    const states = [[x(0), y(curve.points[1].state)]];
    for (const point of curve.points.slice(1)) {
      const [px, py] = [x(point.position), y(point.state)];
      if (py !== states.at(-1)[1]) states.push([px, states.at(-1)[1]]);
      states.push([px, py]);
    }
    const now = this.position;
    const bytesNow = this.measured ?? curve.state(now);
    const parts = [
      ...[BOX.top, (BOX.top + BOX.bottom) / 2].map((height) =>
        svg("line", {class: "grid", x1: BOX.left, x2: BOX.right, y1: height, y2: height})),
      svg("path", {class: "area", d: `${line(states)}L${x(shown)} ${BOX.bottom}L${x(0)} ${BOX.bottom}Z`}),
      svg("line", {class: "axis", x1: BOX.left, x2: BOX.right, y1: BOX.bottom, y2: BOX.bottom}),
      svg("text", {x: BOX.left, y: BOX.top - 5}, bytes(most)),
      svg("text", {x: BOX.left, y: BOX.bottom + 15}, "0"),
      svg("text", {x: BOX.right, y: BOX.bottom + 15, "text-anchor": "end"}, tokens(shown)),
    ];
    if (curve.perToken > 0) {
      parts.push(svg("path", {class: "cache", d: line([[x(0), y(0)], [x(shown), y(curve.cache(shown))]])}));
    }
    parts.push(svg("path", {class: "session", d: line(states)}));
    for (const turn of this.turns) {
      if (turn.end <= shown) parts.push(svg("circle", {class: "measured", cx: x(turn.end), cy: y(turn.bytes), r: 2.5}));
    }
    if (now > 0) {
      parts.push(svg("line", {class: "now", x1: x(now), x2: x(now), y1: BOX.top, y2: BOX.bottom}));
      if (curve.perToken > 0) parts.push(svg("circle", {class: "dot cache", cx: x(now), cy: y(curve.cache(now)), r: 4}));
      parts.push(svg("circle", {class: "dot", cx: x(now), cy: y(bytesNow), r: 5}));
    }
    byId("chart").replaceChildren(...parts);
    byId("chart-caption").textContent =
        `Chart up to ${tokens(shown)}. There a session holds ${bytes(curve.state(shown))}` +
        (curve.perToken > 0 ? `, a full KV cache ${bytes(curve.cache(shown))}.` : ".");
  }

  #tell(curve, far) {
    const now = this.position;
    const mine = now === 0 ? 0 : this.measured ?? curve.state(now);
    const cache = curve.cache(now);
    const has = curve.perToken > 0;
    replace(byId("memory-figures"),
            h("dt", {}, "Length"), h("dd", {id: "figure-length"}, tokens(now)),
            h("dt", {class: "session"}, "This session"), h("dd", {id: "figure-session"}, bytes(mine)),
            has ? [h("dt", {class: "cache"}, "A full KV cache"), h("dd", {id: "figure-cache"}, bytes(cache))] : null,
            h("dt", {}, "The session’s cap"), h("dd", {}, bytes(curve.cap)),
            this.merged ? [h("dt", {}, "Tokens merged"), h("dd", {}, number(this.merged))] : null);
    replace(byId("strip"), now > 0 ? h("span", {}, h("b", {class: "session"}, bytes(mine)), ` at ${tokens(now)}`) : null,
            now > 0 && has ? h("span", {}, "full cache ", h("b", {class: "cache"}, bytes(cache))) : null);
    byId("memory-note").textContent = has ? this.#comparison(mine, cache, far) : "";
  }

  #comparison(mine, cache, far) {
    const crossing = far.crossing();
    if (mine > 0 && cache > mine) return `A full KV cache would hold ${ratio(cache / mine)} times as much.`;
    if (crossing === undefined) return "This memory keeps every token: it grows as a full KV cache does.";
    return `A session is smaller than a full KV cache from about ${tokens(Math.round(crossing))} on.`;
  }

  // For a session that is not there yet.
  async forecast(kind) {
    const curve = await this.curve(kind, LENGTHS.at(-1), 200);
    const at = 32768;
    const cache = curve.perToken > 0 ? `, where a full KV cache has ${bytes(curve.cache(at))}` : "";
    const then = `It will hold ${bytes(curve.state(at))} at ${number(at)} tokens${cache}`;
    return `${then}, and never more than ${bytes(curve.cap)}.`;
  }
}
