// Uses OpenAI's own package with a server: node openai_client.mjs PACKAGE BASE_URL.
// Prints a line for each thing that went well; ends with 1 at the first that did not.
import assert from "node:assert/strict";
import {pathToFileURL} from "node:url";

const [folder, baseURL] = process.argv.slice(2);
const {default: OpenAI} = await import(pathToFileURL(`${folder}/index.mjs`));
const client = new OpenAI({baseURL, apiKey: "none", maxRetries: 0});
const model = "tiny";
const messages = [{role: "system", content: "be brief"}, {role: "user", content: "hello"}];

const tests = {
  async models() {
    const list = await client.models.list();
    assert.deepEqual(list.data.map((one) => one.id), [model]);
    assert.equal((await client.models.retrieve(model)).object, "model");
  },
  async completions() {
    const answer = await client.completions.create(
      {model, prompt: "abc", max_tokens: 5, n: 2, seed: 3, logprobs: 1, stop: ["zzz"]});
    assert.equal(answer.choices.length, 2);
    assert.equal(answer.usage.completion_tokens, 10);
    assert.equal(answer.choices[0].logprobs.tokens.length, 5);
  },
  async "completions, streamed"() {
    const whole = await client.completions.create({model, prompt: "abc", max_tokens: 8, temperature: 0});
    const stream = await client.completions.create(
      {model, prompt: "abc", max_tokens: 8, temperature: 0, stream: true,
       stream_options: {include_usage: true}});
    let text = "", usage = null;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.text ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].text);
    assert.equal(usage.completion_tokens, 8);
  },
  async chat() {
    const answer = await client.chat.completions.create(
      {model, messages, max_completion_tokens: 5, temperature: 0, logprobs: true, top_logprobs: 2});
    assert.equal(answer.choices[0].message.role, "assistant");
    assert.equal(answer.choices[0].finish_reason, "length");
    assert.equal(answer.choices[0].logprobs.content.length, 5);
  },
  async "chat, with the package's own helper of streams"() {
    const runner = client.chat.completions.stream({model, messages, max_tokens: 6, temperature: 0});
    let deltas = "";
    runner.on("content", (delta) => { deltas += delta; });
    const final = await runner.finalChatCompletion();
    assert.equal(final.choices[0].message.content, deltas);
  },
  async "chat in a JSON schema"() {
    const schema = {type: "object", properties: {name: {type: "string", maxLength: 5}, ok: {type: "boolean"}},
                    required: ["name", "ok"], additionalProperties: false};
    const answer = await client.chat.completions.parse(
      {model, messages, max_tokens: 200,
       response_format: {type: "json_schema", json_schema: {name: "n", strict: true, schema}}});
    const parsed = JSON.parse(answer.choices[0].message.content);
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.deepEqual([Object.keys(parsed), typeof parsed.name, typeof parsed.ok],
                     [["name", "ok"], "string", "boolean"]);
    await assert.rejects(client.chat.completions.create(
      {model, messages, response_format: {type: "json_schema", json_schema: {name: "n", schema: {not: {type: "null"}}}}}),
      (error) => error.status === 400 && error.param === "response_format.json_schema.schema");
  },
  async "responses in a format"() {
    const answer = await client.responses.create(
      {model, input: "hello", max_output_tokens: 200,
       text: {format: {type: "json_schema", name: "n", strict: true, schema: {enum: ["left", "right"]}}}});
    assert.ok(['"left"', '"right"'].includes(answer.output_text), answer.output_text);
  },
  async "chat, aborted"() {
    const stream = await client.chat.completions.create(
      {model, messages, max_tokens: 1_000_000_000, stream: true});
    let chunks = 0;
    for await (const chunk of stream) {
      assert.equal(chunk.object, "chat.completion.chunk");
      if (++chunks === 5) stream.controller.abort();
    }
    for (let i = 0; ; ++i) {
      const status = await (await fetch(new URL("/ovq/v1/status", baseURL))).json();
      if (!status.requestsRunning) break;
      assert.ok(i < 500, "the server goes on with an aborted stream");
      await new Promise((done) => setTimeout(done, 20));
    }
  },
  async responses() {
    const first = await client.responses.create(
      {model, input: "hello", instructions: "be brief", max_output_tokens: 5});
    assert.equal(first.object, "response");
    assert.equal(first.output_text, first.output[0].content[0].text);
    const second = await client.responses.create(
      {model, input: [{role: "user", content: "and?"}], previous_response_id: first.id,
       max_output_tokens: 5});
    assert.ok(second.usage.input_tokens_details.cached_tokens > 0);
    assert.equal((await client.responses.retrieve(first.id)).id, first.id);
    await client.responses.delete(first.id);
    await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
  },
  async "responses, streamed"() {
    const stream = client.responses.stream({model, input: "hello", max_output_tokens: 5});
    let text = "";
    for await (const event of stream) {
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    const final = await stream.finalResponse();
    assert.equal(final.output_text, text);
  },
  async errors() {
    const rejects = async (call, type, param, code) => {
      const error = await call.then(() => null, (thrown) => thrown);
      assert.ok(error instanceof type, `${error}`);
      assert.equal(error.param, param);
      if (code) assert.equal(error.code, code);
      assert.match(error.requestID, /^[0-9a-f]{32}$/);
    };
    const chat = (fields) => client.chat.completions.create({model, messages, ...fields});
    await rejects(chat({model: "gpt"}), OpenAI.NotFoundError, "model", "model_not_found");
    await rejects(chat({temperature: 1000}), OpenAI.BadRequestError, "temperature");
    await rejects(chat({tools: [{type: "function", function: {name: "f"}}]}), OpenAI.BadRequestError,
                  "tools");  // the template has none
    await rejects(chat({tools: [{type: "custom", custom: {name: "f"}}]}), OpenAI.BadRequestError,
                  "tools[0]", "unsupported_parameter");
    await rejects(client.responses.create({model, input: "x", previous_response_id: "resp_x"}),
                  OpenAI.NotFoundError, "previous_response_id", "previous_response_not_found");
  },
};

for (const [name, test] of Object.entries(tests)) {
  await test();
  console.log(`ok: ${name}`);
}
