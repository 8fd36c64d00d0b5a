import {HumanMessage, SystemMessage} from "@langchain/core/messages";
import {tool} from "@langchain/core/tools";
import {ChatOpenAI} from "@langchain/openai";
import {abortMidway, apiKey, assert, baseURL, converse, description, endless, endlessURL, model, name, parameters,
        result, runAll, system} from "./checks.mjs";

const weather = tool(() => result, {name, description, schema: parameters});

async function turns(fields, stream) {
  const chat = new ChatOpenAI({model, apiKey, configuration: {baseURL}, temperature: 0, maxRetries: 0, ...fields});
  const bound = chat.bindTools([weather]);
  const messages = [new SystemMessage(system)];
  const ask = async () => {
    if (!stream) return bound.invoke(messages);
    let whole = null;
    for await (const chunk of await bound.stream(messages)) whole = whole === null ? chunk : whole.concat(chunk);
    return whole;
  };
  await converse(async (said) => {
    const cities = [];
    messages.push(new HumanMessage(said));
    for (;;) {
      const answer = await ask();
      messages.push(answer);
      assert.ok(answer.usage_metadata.output_tokens > 0);
      if (!answer.tool_calls.length) return {cities, text: answer.text};
      for (const call of answer.tool_calls) {
        cities.push(call.args.city);
        messages.push(await weather.invoke(call));
      }
    }
  });
}

const tests = {};
for (const stream of [false, true]) {
  const how = stream ? ", streamed" : "";
  tests[`chat${how}`] = () => turns({}, stream);
  tests[`responses${how}`] = () => turns({useResponsesApi: true}, stream);
  tests[`responses without a store${how}`] = () => turns({useResponsesApi: true, zdrEnabled: true}, stream);
}
await runAll({
  ...tests,
  async aborts() {
    for (const useResponsesApi of [false, true]) {
      const abort = new AbortController();
      const chat = new ChatOpenAI({model: endless, apiKey, configuration: {baseURL: endlessURL}, maxTokens: 1e9,
                                   maxRetries: 0, useResponsesApi});
      await abortMidway(await chat.stream("x", {signal: abort.signal}), () => abort.abort());
    }
    await turns({}, true);
  },
});
