import Anthropic from "@anthropic-ai/sdk";
import {abortMidway, apiKey, assert, converse, description, endless, endlessOrigin, model, name, origin, parameters,
        result, runAll, system} from "./checks.mjs";

const client = new Anthropic({baseURL: origin, apiKey, maxRetries: 0});
const slow = new Anthropic({baseURL: endlessOrigin, apiKey, maxRetries: 0});
const tools = [{name, description, input_schema: parameters}];

async function ask(messages, stream, fields) {
  const body = {model, max_tokens: 200, temperature: 0, system: [{type: "text", text: system}], tools, messages,
                ...fields};
  if (!stream) return client.messages.create(body);
  const events = client.messages.stream(body);
  let text = "";
  events.on("text", (delta) => { text += delta; });
  const final = await events.finalMessage();
  assert.equal(text, final.content.filter((block) => block.type === "text").map((block) => block.text).join(""));
  return final;
}

async function turns(stream, fields) {
  const messages = [];
  await converse(async (said) => {
    const cities = [];
    messages.push({role: "user", content: said});
    for (;;) {
      const answer = await ask(messages, stream, fields);
      messages.push({role: "assistant", content: answer.content});
      assert.ok(answer.usage.output_tokens > 0);
      const calls = answer.content.filter((block) => block.type === "tool_use");
      assert.equal(answer.stop_reason, calls.length > 0 ? "tool_use" : "end_turn");
      if (calls.length === 0) {
        return {cities, text: answer.content.filter((block) => block.type === "text").map(({text}) => text).join("")};
      }
      cities.push(...calls.map((call) => call.input.city));
      messages.push({role: "user", content: calls.map(
        (call) => ({type: "tool_result", tool_use_id: call.id, content: result}))});
    }
  });
}

// The package's helper calls the tool by itself.
async function runner(stream) {
  const messages = [];
  await converse(async (said) => {
    const cities = [];
    messages.push({role: "user", content: said});
    const weather = {...tools[0], run: ({city}) => { cities.push(city); return result; }, parse: (input) => input};
    const running = client.beta.messages.toolRunner(
      {model, max_tokens: 200, temperature: 0, system, tools: [weather], messages, stream});
    const last = await running.runUntilDone();
    messages.splice(0, messages.length, ...running.params.messages);
    if (messages.at(-1).role !== "assistant") messages.push({role: "assistant", content: last.content});
    return {cities, text: last.content.at(-1).text};
  });
}

const tests = {};
for (const stream of [false, true]) {
  const how = stream ? ", streamed" : "";
  tests[`messages${how}`] = () => turns(stream, {});
  tests[`messages with thinking${how}`] = () => turns(stream, {thinking: {type: "enabled", budget_tokens: 1024}});
  tests[`the runner of tools${how}`] = () => runner(stream);
}
await runAll({
  ...tests,
  async counts() {
    const messages = [{role: "user", content: "Hello."}];
    const counted = await client.messages.countTokens({model, messages, tools});
    const answer = await client.messages.create({model, max_tokens: 1, messages, tools});
    assert.equal(counted.input_tokens, answer.usage.input_tokens + answer.usage.cache_read_input_tokens);
  },
  async errors() {
    const messages = [{role: "user", content: "Hello."}];
    await assert.rejects(client.messages.create({model: "another", max_tokens: 1, messages}), Anthropic.NotFoundError);
    await assert.rejects(client.messages.create({model, max_tokens: 1, messages, temperature: 1000}),
                         (error) => error instanceof Anthropic.BadRequestError &&
                                    error.type === "invalid_request_error" && error.requestID.length === 32);
  },
  async "an aborted message"() {
    const stream = slow.messages.stream({model: endless, max_tokens: 1e9, messages: [{role: "user", content: "x"}]});
    await abortMidway(stream, () => stream.abort());
    await turns(true, {});
  },
});
