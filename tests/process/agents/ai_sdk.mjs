import {createOpenAI} from "@ai-sdk/openai";
import {createOpenAICompatible} from "@ai-sdk/openai-compatible";
import {generateText, jsonSchema, stepCountIs, streamText, tool} from "ai";
import {abortMidway, apiKey, assert, baseURL, converse, description, endless, endlessURL, model, parameters, result,
        runAll, system} from "./checks.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const openai = createOpenAI({baseURL, apiKey});
// The package sends no temperature to models that reason.
const greedy = createOpenAI({baseURL, apiKey, fetch: (url, init) => fetch(
  url, {...init, body: JSON.stringify({...JSON.parse(init.body), temperature: 0})})});
const compatible = createOpenAICompatible({name: "ovq", baseURL, apiKey, includeUsage: true});

async function turns(language, stream, openaiOptions = {}) {
  const messages = [];
  await converse(async (said) => {
    const cities = [];
    const execute = async ({city}) => { cities.push(city); return result; };
    messages.push({role: "user", content: said});
    const call = {model: language, system, messages, temperature: 0, maxRetries: 0, stopWhen: stepCountIs(4),
                  tools: {get_weather: tool({description, inputSchema: jsonSchema(parameters), execute})},
                  providerOptions: {openai: openaiOptions}};
    if (!stream) {
      const {text, response, steps} = await generateText(call);
      assert.equal(steps.length, cities.length + 1);
      const thought = "reasoningSummary" in openaiOptions;
      for (const step of steps) assert.equal(Boolean(step.reasoningText), thought);
      messages.push(...response.messages);
      return {cities, text};
    }
    let text = "";
    const answer = streamText({...call, onError() {}});
    for await (const part of answer.fullStream) {
      if (part.type === "error") throw part.error;
      if (part.type === "text-delta") text += part.text;
    }
    assert.equal(text, await answer.text);
    assert.ok((await answer.totalUsage).outputTokens > 0);
    messages.push(...(await answer.response).messages);
    return {cities, text};
  });
}

async function aborted(language) {
  const abort = new AbortController();
  const {textStream} = streamText({model: language, prompt: "x", maxOutputTokens: 1e9, maxRetries: 0, onError() {},
                                   abortSignal: abort.signal});
  await abortMidway(textStream, () => abort.abort());
}

const tests = {};
for (const stream of [false, true]) {
  const how = stream ? ", streamed" : "";
  tests[`the default provider${how}`] = () => turns(openai(model), stream);
  tests[`the default provider, reasoning${how}`] = () => turns(
    greedy(model), stream, {forceReasoning: true, reasoningEffort: "low", reasoningSummary: "auto"});
  tests[`the default provider without a store${how}`] = () => turns(
    greedy(model), stream, {store: false, forceReasoning: true, reasoningEffort: "low"});
  tests[`the chat provider${how}`] = () => turns(openai.chat(model), stream);
  tests[`the compatible provider${how}`] = () => turns(compatible(model), stream);
}
await runAll({
  ...tests,
  async aborts() {
    await aborted(createOpenAI({baseURL: endlessURL, apiKey})(endless));
    await aborted(createOpenAI({baseURL: endlessURL, apiKey}).chat(endless));
    await aborted(createOpenAICompatible({name: "ovq", baseURL: endlessURL, apiKey})(endless));
    await turns(openai(model), true);
  },
});
