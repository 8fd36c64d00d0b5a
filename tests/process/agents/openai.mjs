import OpenAI from "openai";
import {abortMidway, apiKey, assert, baseURL, converse, description, endless, endlessURL, model, name, parameters,
        result, runAll, system} from "./checks.mjs";

const client = new OpenAI({baseURL, apiKey, maxRetries: 0});
const slow = new OpenAI({baseURL: endlessURL, apiKey, maxRetries: 0});
const flat = {type: "function", name, description, parameters, strict: true};

// The package's helper calls the tool by itself.
async function chats(stream) {
  const messages = [{role: "system", content: system}];
  await converse(async (said) => {
    const cities = [];
    const weather = ({city}) => { cities.push(city); return result; };
    const tool = {type: "function", function: {function: weather, parse: JSON.parse, name, description, parameters}};
    messages.push({role: "user", content: said});
    const runner = client.chat.completions.runTools({model, messages, tools: [tool], temperature: 0, stream});
    const text = await runner.finalContent();
    messages.splice(0, messages.length, ...runner.messages);
    return {cities, text};
  });
}

async function ask(fields, stream) {
  const body = {model, tools: [flat], temperature: 0, ...fields};
  if (!stream) return client.responses.create(body);
  const events = client.responses.stream(body);
  const whole = {text: "", arguments: ""};
  for await (const event of events) {
    if (event.type === "response.output_text.delta") whole.text += event.delta;
    if (event.type === "response.function_call_arguments.delta") whole.arguments += event.delta;
  }
  const final = await events.finalResponse();
  assert.equal(final.output_text, whole.text);
  const call = final.output.find((item) => item.type === "function_call");
  assert.equal(call?.arguments ?? "", whole.arguments);
  return final;
}

// `next(input, response)` gives the fields of the request that goes on from the response with the input.
async function responses(next, stream) {
  let last = null;
  await converse(async (said) => {
    const cities = [];
    last = await ask(next([{role: "user", content: said}], last), stream);
    for (;;) {
      const calls = last.output.filter((item) => item.type === "function_call");
      if (calls.length === 0) break;
      cities.push(...calls.map((call) => JSON.parse(call.arguments).city));
      last = await ask(next(calls.map(
        (call) => ({type: "function_call_output", call_id: call.call_id, output: result})), last), stream);
    }
    return {cities, text: last.output_text};
  });
}

const tests = {};
for (const stream of [false, true]) {
  const how = stream ? ", streamed" : "";
  tests[`chat${how}`] = () => chats(stream);
  tests[`responses by previous_response_id${how}`] = () => responses(
    (input, last) => ({input, previous_response_id: last?.id, instructions: system}), stream);
  for (const store of [true, false]) {
    tests[`responses by ${store ? "references" : "whole items"}${how}`] = () => {
      const items = [];
      return responses((input, last) => {
        const output = last?.output ?? [];
        items.push(...(store ? output.map(({id}) => ({type: "item_reference", id})) : output), ...input);
        return {input: items, store, include: ["reasoning.encrypted_content"], instructions: system,
                reasoning: {effort: "low", summary: "auto"}};
      }, stream);
    };
  }
}
await runAll({
  ...tests,
  async "an aborted chat"() {
    const stream = await slow.chat.completions.create(
      {model: endless, messages: [{role: "user", content: "x"}], max_tokens: 1e9, stream: true});
    await abortMidway(stream, () => stream.controller.abort());
    await chats(true);
  },
  async "an aborted response"() {
    const stream = await slow.responses.create({model: endless, input: "x", max_output_tokens: 1e9, stream: true});
    await abortMidway(stream, () => stream.controller.abort());
    await ask({input: "Hello."}, true);
  },
});
