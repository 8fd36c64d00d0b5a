import {Agent, OpenAIProvider, Runner, setTracingDisabled, tool} from "@openai/agents";
import OpenAI from "openai";
import {abortMidway, apiKey, assert, baseURL, converse, description, endless, endlessURL, model, name, parameters,
        result, runAll, system} from "./checks.mjs";

setTracingDisabled(true);
const runner = (url, useResponses) => new Runner({
  modelProvider: new OpenAIProvider(
    {openAIClient: new OpenAI({baseURL: url, apiKey, maxRetries: 0}), useResponses})});

// `history` is how a turn goes on from the one before: the items, or the id of the response.
async function turns(useResponses, stream, history, modelSettings = {}) {
  let cities = [], items = [], previousResponseId;
  const weather = tool({name, description, parameters, strict: false,
                        execute: async ({city}) => { cities.push(city); return result; }});
  const agent = new Agent({name: "Assistant", instructions: system, model, tools: [weather],
                           modelSettings: {temperature: 0, ...modelSettings}});
  await converse(async (said) => {
    cities = [];
    const input = history === "items" ? [...items, {role: "user", content: said}] : said;
    const run = await runner(baseURL, useResponses).run(agent, input, {stream, previousResponseId});
    if (stream) {
      let text = "";
      for await (const part of run.toTextStream()) text += part;
      await run.completed;
      assert.equal(text, run.finalOutput);
    }
    items = run.history;
    if (history === "id") previousResponseId = run.lastResponseId;
    return {cities, text: run.finalOutput};
  });
}

const tests = {};
for (const stream of [false, true]) {
  const how = stream ? ", streamed" : "";
  tests[`chat${how}`] = () => turns(false, stream, "items");
  tests[`responses by items${how}`] = () => turns(true, stream, "items");
  tests[`responses by items, reasoning${how}`] = () => turns(
    true, stream, "items", {reasoning: {effort: "low", summary: "auto"}, store: false});
  tests[`responses by id${how}`] = () => turns(true, stream, "id");
}
await runAll({
  ...tests,
  async aborts() {
    for (const useResponses of [false, true]) {
      const agent = new Agent({name: "Assistant", model: endless, modelSettings: {maxTokens: 1e9}});
      const abort = new AbortController();
      const run = await runner(endlessURL, useResponses).run(agent, "x", {stream: true, signal: abort.signal});
      await abortMidway(run.toTextStream(), () => abort.abort());
    }
    await turns(true, true, "items");
  },
});
