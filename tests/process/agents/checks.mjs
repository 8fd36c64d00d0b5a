// Shared by the clients of this folder: node CLIENT.mjs URL_OF_SCRIPTED_CHAT URL_OF_ENDLESS_MODEL.
// They print a line for each thing that went well and end with 1 at the first that did not.
import assert from "node:assert/strict";

export {assert};
export const [origin, endlessOrigin] = process.argv.slice(2);
export const baseURL = `${origin}/v1`, endlessURL = `${endlessOrigin}/v1`;
export const model = "scripted-chat", endless = "tiny", apiKey = "none";
export const system = "You are a helpful assistant.";
// A tool that every client offers, and its result.
export const name = "get_weather", description = "Get the weather of a city.";
export const parameters = {type: "object", properties: {city: {type: "string"}}, required: ["city"],
                           additionalProperties: false};
export const result = '{"temperature": -7, "condition": "foggy"}';
// What the user says, the city that the model asks the tool for, and the answer.
export const turns = [["What is the weather in Oslo?", "Oslo", "In Oslo it is foggy at -7 degrees."],
                      ["And in Rome?", "Rome", "In Rome it is foggy at -7 degrees."],
                      ["Thanks!", null, "You are welcome."]];

// Has the turns with `turn(said)`, which resolves to {cities, text}: the calls' and the answer's.
export async function converse(turn) {
  for (const [said, city, answer] of turns) {
    const {cities, text} = await turn(said);
    assert.deepEqual(cities, city === null ? [] : [city]);
    assert.equal(text, answer);
  }
}

// Reads 5 parts of a stream that would not end, then calls abort; the server's request has to end.
export async function abortMidway(parts, abort) {
  let n = 0;
  try {
    for await (const part of parts) {
      assert.ok(part !== undefined);
      if (++n === 5) abort();
    }
  } catch (error) {  // some clients throw, and some end the stream
    if (n < 5 || !/abort/i.test(`${error.name} ${error.message}`)) throw error;
  }
  assert.ok(n >= 5, "the stream ended by itself");
  for (let i = 0; ; ++i) {
    const status = await (await fetch(`${endlessOrigin}/ovq/v1/status`)).json();
    if (!status.requestsRunning) return;
    assert.ok(i < 500, "the server goes on with an aborted stream");
    await new Promise((done) => setTimeout(done, 20));
  }
}

export async function runAll(tests) {
  for (const [title, test] of Object.entries(tests)) {
    await test();
    console.log(`ok: ${title}`);
  }
}
