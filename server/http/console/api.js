// The server's HTTP interface (docs/http.md): calls that answer with JSON, and streams of events.

const TOKEN = "ovq.token";

// The server refused: `status` is HTTP's, `field` the culprit's path in the request, `reason` one of ErrorInfo's
// (proto/ovq/v1/inference.proto), `retryMs` when time alone ends it.
export class Refused extends Error {
  constructor(status, {message, param, code}, retryMs) {
    super(message);
    this.status = status;
    this.field = param ?? "";
    this.reason = code ?? "";
    this.retryMs = retryMs;
  }
}

// Nobody knows whether the server has carried the call out.
export class Broken extends Error {}

async function refusalOf(response) {
  const text = await response.text().catch(() => "");
  let error = {message: text.trim() || `status ${response.status}`};
  try {
    error = JSON.parse(text).error ?? error;
  } catch { /* a proxy's, perhaps: its words are all there is */ }
  return new Refused(response.status, error, Number(response.headers.get("retry-after-ms")));
}

// What the lines of an event stream say, event by event.
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.map((one) => one.replace(/\r$/, ""))) {
      if (line.startsWith("data:")) {
        data.push(line.slice(5).replace(/^ /, ""));
      } else if (line === "" && data.length) {
        const text = data.join("\n");
        data = [];
        if (text === "[DONE]") return;
        yield JSON.parse(text);
      }
    }
  }
}

export class Api {
  // `askForToken(wrong)` resolves to a token, or to null if there is none to be had.
  constructor(askForToken) {
    this.askForToken = askForToken;
    this.asking = null;
  }

  // quiet: asks nobody for a token.
  async #fetch(path, {method = "GET", body, signal, quiet = false} = {}) {
    for (;;) {
      const token = sessionStorage.getItem(TOKEN);
      const headers = {};
      if (token) headers.Authorization = `Bearer ${token}`;
      if (body !== undefined) headers["Content-Type"] = "application/json";
      let response;
      try {
        response = await fetch(path, {
          method, headers, signal, cache: "no-store",
          body: body === undefined ? undefined : JSON.stringify(body),
        });
      } catch (error) {
        if (signal?.aborted) throw error;
        throw new Broken("The server cannot be reached.");
      }
      if (response.ok) return response;
      if (response.status !== 401) throw await refusalOf(response);
      const why = await refusalOf(response);
      if (quiet) throw why;
      // Of several calls that were refused the first one asks; one with an older token tries again.
      if (sessionStorage.getItem(TOKEN) === token) {
        this.asking ??= this.askForToken(token !== null).finally(() => { this.asking = null; });
        const given = await this.asking;
        if (given === null) throw why;
        sessionStorage.setItem(TOKEN, given);
      }
    }
  }

  async #json(path, options) {
    const response = await this.#fetch(path, options);
    try {
      return await response.json();
    } catch {
      throw new Broken("The connection broke before the answer was there.");
    }
  }

  info({positions, memory, maxCentroids} = {}) {
    const query = new URLSearchParams();
    if (positions) query.set("positions", positions.join(","));
    if (memory) query.set("memory", memory);
    if (maxCentroids) query.set("max_centroids", maxCentroids);
    return this.#json(`/ovq/v1/info?${query}`);
  }

  status() { return this.#json("/ovq/v1/status", {quiet: true}); }

  async sessions() {
    const all = [];
    let page = "";
    do {
      const query = new URLSearchParams({page_size: 1000, page_token: page});
      const part = await this.#json(`/ovq/v1/sessions?${query}`, {quiet: true});
      all.push(...(part.sessions ?? []));
      page = part.nextPageToken ?? "";
    } while (page && all.length < 10000);
    return all;
  }

  create(body) { return this.#json("/ovq/v1/sessions", {method: "POST", body}); }
  session(id) { return this.#json(`/ovq/v1/sessions/${id}`); }
  remove(id) { return this.#json(`/ovq/v1/sessions/${id}`, {method: "DELETE"}); }
  async fork(id) {
    return (await this.#json(`/ovq/v1/sessions/${id}/fork`, {method: "POST", body: {}})).sessions[0];
  }
  async rewind(id, position) {
    const body = {position: String(position)};
    return (await this.#json(`/ovq/v1/sessions/${id}/rewind`, {method: "POST", body})).session;
  }

  // GenerateResponses. Ends with Broken if the last event is not a Finished.
  async* generate(id, body, signal) {
    const response = await this.#fetch(`/ovq/v1/sessions/${id}/generate`,
                                       {method: "POST", body, signal});
    let finished = false;
    try {
      for await (const event of eventsOf(response.body)) {
        if (event.error) throw new Refused(response.status, event.error, 0);
        finished ||= event.finished !== undefined;
        yield event;
      }
    } catch (error) {
      if (signal.aborted || error instanceof Refused) throw error;
      throw new Broken("The connection broke in the middle of the answer.");
    }
    if (!finished) throw new Broken("The connection broke in the middle of the answer.");
  }
}
