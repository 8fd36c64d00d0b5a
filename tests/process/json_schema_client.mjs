// Judges constraints by ajv: usage: json_schema_client.mjs NODE_MODULES PROGRAM SAMPLES FILE...
//
// A file is a list of {description, schema, tests: [{data, valid}]}, the form of the official test
// suite of JSON Schema; tests may be missing. Of every schema that the program (sample_constraint)
// accepts, all samples have to be valid, and no instance that is not valid may be a text of it.
// Every refused schema has to name one of the reasons of docs/constraints.md.
import {spawn} from 'node:child_process';
import {readFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import {resolve} from 'node:path';
import {createInterface} from 'node:readline';

const [modules, program, samples, ...files] = process.argv.slice(2);
const require = createRequire(resolve(modules) + '/');
const Ajv = require('ajv/dist/2020').default;
const addFormats = require('ajv-formats').default;

// What the page lists; each refusal has one of them.
const reasons = {
  'a keyword that is not known': /: not a keyword that is known$/,
  'a condition': /\/(if|then|else|dependent\w+|dependencies): conditions are not kept$/,
  'not': /\/not: what must not hold is not kept$/,
  'contains': /\/contains: what only some items satisfy is not kept$/,
  'uniqueItems': /\/uniqueItems: items that differ/,
  'unevaluated': /\/unevaluated\w+: only kept where/,
  'dynamic references': /: dynamic references are not followed$/,
  'another dialect': /^#\/\$schema: not a dialect/,
  'a vocabulary': /\$vocabulary: /,
  'an identifier inside': /\$id: only the whole document/,
  'an anchor that is not one': /\$anchor: must be a string that no other schema has$/,
  'a reference out of the document': /\$ref: nothing in this document is at /,
  'a reference to itself': /refers to itself with no|references, or to itself$|has no text that ends$|satisfies/,
  'oneOf that is not disjoint': /\/oneOf: branches \d+ and \d+ may hold/,
  'an unknown format': /\/format: must be one of: /,
  'an expression that is not linear':
    /at character \d+: (look-|back references|word boundaries|\\p|this escape|flags)/,
  'unsatisfiable':
    /: (no value is allowed here|none of the listed values is allowed|no string has the pattern|no number that is written|max\w+ is below|no object has enough|propertyNames does not allow)/,
  'names with alternatives': /: names with alternatives are not kept$/,
  'a size': /(more than|at most|too many|takes too long)/,
  'not a schema': /: (must |not a JSON object$)/,
  'additionalItems': /\/additionalItems: /,
};

const child = spawn(program, {stdio: ['pipe', 'pipe', 'inherit']});
const lines = createInterface({input: child.stdout})[Symbol.asyncIterator]();
const ask = async (task) => {
  child.stdin.write(JSON.stringify(task) + '\n');
  const {value, done} = await lines.next();
  if (done) throw new Error('the program ended at ' + JSON.stringify(task));
  return JSON.parse(value);
};

const counts = {}, faults = [];
const figures = {schemas: 0, accepted: 0, samples: 0, unfinished: 0, invalid: 0, valid: 0,
                 valid_accepted: 0, not_judged: 0};
const times = [];
for (const file of files) {
  for (const group of JSON.parse(readFileSync(file, 'utf8'))) {
    const fault = (text) => faults.push(`${file}: ${group.description}: ${text}`);
    const tests = (group.tests ?? []).map((test) => ({...test, text: JSON.stringify(test.data)}));
    ++figures.schemas;
    const answer = await ask({kind: 'json_schema', text: JSON.stringify(group.schema),
                              texts: tests.map((test) => test.text), samples: +samples,
                              seed: figures.schemas});
    if (answer.error !== undefined) {
      const found = Object.keys(reasons).find((name) => reasons[name].test(answer.error));
      if (!found) fault(`refused for no reason of the list: ${answer.error}`);
      counts[found] = (counts[found] ?? 0) + 1;
      if (process.env.SHOW) console.log(`${group.description}: ${answer.error}`);
      continue;
    }
    ++figures.accepted;
    times.push(answer.milliseconds);
    figures.unfinished += answer.unfinished;
    tests.forEach((test, i) => {
      ++figures[test.valid ? 'valid' : 'invalid'];
      if (test.valid && answer.accepts[i]) ++figures.valid_accepted;
      if (!test.valid && answer.accepts[i]) fault(`accepts ${test.text}, which is not valid`);
      if (process.env.SHOW && test.valid && !answer.accepts[i]) {
        console.log(`${group.description}: not accepted: ${test.text}`);
      }
    });
    let validate;
    try {
      const ajv = new Ajv({strict: false, multipleOfPrecision: 3, validateSchema: false, ownProperties: true,
                           logger: false});
      addFormats(ajv);
      validate = ajv.compile(group.schema);
    } catch (error) {
      ++figures.not_judged;
      if (process.env.SHOW) console.log(`${group.description}: ajv: ${error.message}`);
      continue;
    }
    for (const text of answer.samples) {
      ++figures.samples;
      let data;
      try {
        data = JSON.parse(text);
      } catch (error) {
        fault(`not JSON: ${JSON.stringify(text)}`);
        continue;
      }
      if (!validate(data)) fault(`${text}: ${ajvMessage(validate)}`);
    }
    if (+samples > 0 && answer.samples.length === 0) fault('no sample ended');
  }
}
child.stdin.end();

function ajvMessage(validate) {
  return validate.errors.map((error) => `${error.instancePath} ${error.message}`).join('; ');
}

times.sort((a, b) => a - b);
console.log(JSON.stringify({...figures, refused: counts,
                            milliseconds: {p50: times[times.length >> 1], most: times.at(-1)}}));
for (const fault of faults.slice(0, 40)) console.log('FAULT ' + fault);
if (faults.length > 40) console.log(`... and ${faults.length - 40} more`);
process.exit(faults.length > 0 ? 1 : 0);
