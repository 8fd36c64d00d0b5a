// Compares masks with another implementation's, xgrammar (npm: @mlc-ai/web-xgrammar@0.1.27).
//
// usage: compare_masks.mjs NODE_MODULES SAMPLE_CONSTRAINT SAMPLES FILE [FOLDER ...]
//
// FILE: as json_schema_client.mjs reads it. FOLDER: of a tokenizer.json, or - for a vocabulary of bytes
// and a few tokens more, as without one. Masks are compared at each byte of SAMPLES random texts of
// each schema. Where only one side allows a token, the first byte of it that the other refuses has a
// reason of the list below, by what the text is there and by the schema of that value. The first of
// each reason in each schema are judged: the text is completed by the side that allows the token, and
// ajv says whether the schema allows it. A difference without a reason, or a token that only this side
// allows and that leads to what is not valid, is a fault, and the program ends with 1.
import {spawn} from 'node:child_process';
import {existsSync, readFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import {basename, dirname, join, resolve} from 'node:path';
import {createInterface} from 'node:readline';

const [modules, program, samples, file, ...folders] = process.argv.slice(2);
const require = createRequire(resolve(modules) + '/');
const Ajv = require('ajv/dist/2020').default;
const addFormats = require('ajv-formats').default;
const entry = require.resolve('@mlc-ai/web-xgrammar');
// The package says that it is a module, but is a script of CommonJS.
const exported = {};
new Function('exports', 'module', 'require', '__filename', '__dirname', readFileSync(entry, 'utf8'))(
    exported, {exports: exported}, createRequire(entry), entry, dirname(entry));
const {GrammarCompiler, GrammarMatcher, TokenizerInfo} = exported;

const kJudged = 3;       // of each reason in each schema, on each side
const kMostSteps = 400;  // of completing a text

// What a text of JSON is at its end: in a string, in a number or between them, and the way from the
// root to the value or to the object whose name it is.
function scan(bytes) {
  const stack = [];
  let string = null, escaped = false, isName = false, inNumber = false;
  const path = () => stack.map((frame) => frame.isArray ? frame.index : frame.name);
  const expectsName = () => stack.length > 0 && !stack.at(-1).isArray && stack.at(-1).name === undefined;
  for (const byte of bytes) {
    const c = String.fromCharCode(byte);
    if (string !== null) {
      string += c;
      if (!escaped && c === '"') {
        if (isName) {
          try {
            stack.at(-1).name = JSON.parse(Buffer.from('"' + string, 'latin1').toString());
          } catch {
            stack.at(-1).name = null;
          }
        }
        string = null;
      }
      escaped = !escaped && c === '\\';
      continue;
    }
    inNumber = /[-+.0-9]/.test(c) || (inNumber && /[eE]/.test(c));
    if (c === '"') {
      isName = expectsName();
      string = '';
    } else if (c === '{') {
      stack.push({isArray: false, name: undefined});
    } else if (c === '[') {
      stack.push({isArray: true, index: 0});
    } else if (c === '}' || c === ']') {
      stack.pop();
    } else if (c === ',' && stack.length > 0) {
      if (stack.at(-1).isArray) ++stack.at(-1).index; else stack.at(-1).name = undefined;
    }
  }
  const atName = string !== null ? isName : expectsName();
  return {string, escaped, inNumber, isName: atName, path: atName ? path().slice(0, -1) : path()};
}

// The schemas that speak about the value at a path, those of all alternatives included.
function schemasAt(root, path) {
  const expand = (list) => {
    const all = new Set();
    const add = (schema) => {
      if (typeof schema !== 'object' || schema === null || all.has(schema)) return;
      all.add(schema);
      if (schema.$ref !== undefined) {
        add(schema.$ref.slice(1).split('/').slice(1).reduce((at, key) => at?.[key], root));
      }
      for (const key of ['allOf', 'anyOf', 'oneOf']) (schema[key] ?? []).forEach(add);
    };
    list.forEach(add);
    return [...all];
  };
  let schemas = expand([root]);
  for (const step of path) {
    const next = [];
    for (const schema of schemas) {
      if (typeof step === 'number') {
        const listed = schema.prefixItems ?? [];
        next.push(step < listed.length ? listed[step] : schema.items);
        continue;
      }
      const own = schema.properties?.[step];
      const patterns = Object.keys(schema.patternProperties ?? {}).filter((pattern) => new RegExp(pattern, 'u').test(step));
      next.push(own, ...patterns.map((pattern) => schema.patternProperties[pattern]));
      if (own === undefined && patterns.length === 0) next.push(schema.additionalProperties);
    }
    schemas = expand(next);
  }
  return schemas;
}

function beginsUtf8(bytes) {
  try {
    new TextDecoder('utf-8', {fatal: true}).decode(bytes, {stream: true});
    return true;
  } catch {
    return false;
  }
}

// Each has a test of {side, at (what `scan` says before the byte), byte (-1: the end), bytes (up to and
// with it), has (whether a schema of the value or one around it has a keyword), here (the token's bytes)}.
const isNumber = ({at, byte}) =>
    at.string === null && !at.isName && (at.inNumber || /[-0-9]/.test(String.fromCharCode(byte)));
const isValueString = ({at}) => at.string !== null && !at.isName;
const kPlain = 5;  // reasons at the front that have nothing to do with the schema
const reasons = [
  ['special tokens have no text here', (t) => t.side === 'there' && t.byte >= 0 && t.here.length === 0],
  ['white space without bound', (t) => t.side === 'there' && t.at.string === null && [9, 10, 13, 32].includes(t.byte)],
  ['white space before a comma', (t) => t.side === 'there' && t.at.string === null && t.byte === 0x2c &&
      [9, 10, 13, 32].includes(t.bytes.at(-2))],
  ['bytes that are no UTF-8', (t) => t.side === 'there' && t.byte >= 0 && !beginsUtf8(t.bytes)],
  ['escapes of surrogates, in pairs only', (t) => t.side === 'there' && t.at.string !== null &&
      /\\u[dD][89a-fA-F][^"]{0,8}$/.test(Buffer.from(t.bytes).toString('latin1'))],
  ['white space in listed values', (t) => t.side === 'here' && t.has('const', 'enum') && t.at.string === null &&
      [10, 32].includes(t.byte)],
  ['`allOf`: all of its members', (t) => t.has('allOf')],
  ['listed values and no others', (t) => t.side === 'there' && t.has('const', 'enum') && isValueString(t)],
  ['names: `propertyNames`, `patternProperties`, `properties` and `required` together', (t) =>
      (t.at.isName || t.at.string === null) && t.has('propertyNames', 'patternProperties') && !isNumber(t)],
  ['names of additional properties: escapes as `JSON.stringify` writes them', (t) => t.side === 'there' &&
      t.at.isName && t.at.string !== null && t.has('properties') &&
      /\\([^u]?|u[0-9a-fA-F]{0,4})$/.test(Buffer.from(t.bytes).toString('latin1'))],
  ['`multipleOf` is kept', (t) => t.side === 'there' && t.has('multipleOf') && (isNumber(t) || t.at.inNumber)],
  ['a bounded number may have a fraction', (t) => t.side === 'here' && isNumber(t) && t.has('minimum', 'maximum') && t.has('multipleOf', 'number')],
  ['numbers with bounds have at most 15 digits, and no exponent', (t) => t.side === 'there' && isNumber(t) &&
      t.has('minimum', 'maximum')],
  ['numbers have at most 20 digits before and behind the point, exponents two', (t) => t.side === 'there' && isNumber(t)],
  ['`pattern` with lengths', (t) => isValueString(t) && t.has('pattern') && t.has('minLength', 'maxLength')],
  ['dates and times', (t) => isValueString(t) && t.has('date', 'time', 'date-time', 'duration')],
  ['`email`, `hostname`, `ipv4` and `ipv6`', (t) => isValueString(t) && t.has('email', 'hostname', 'ipv4', 'ipv6')],
  ['strings with bounds on their length: escapes', (t) => t.side === 'here' && isValueString(t) && t.has('minLength', 'maxLength')],
  ['strings with bounds on their length: control characters', (t) => t.side === 'there' && isValueString(t) &&
      t.has('minLength', 'maxLength') && t.byte < 32],
];

function classify(schema, side, bytes, here, names) {
  const byte = bytes.length > 0 && here !== null ? bytes.at(-1) : -1;
  const at = scan(byte >= 0 ? bytes.subarray(0, -1) : bytes);
  const schemas = schemasAt(schema, at.path);
  for (let n = at.path.length - 1; n >= 0; --n) {  // what is said of all that is inside
    for (const around of schemasAt(schema, at.path.slice(0, n))) if (around.allOf) schemas.push({allOf: around.allOf});
    if (n === at.path.length - 1) {
      for (const around of schemasAt(schema, at.path.slice(0, n))) {
        if (around.propertyNames) schemas.push({propertyNames: around.propertyNames});
      }
    }
    const listed = schemasAt(schema, at.path.slice(0, n)).filter((around) => around.const !== undefined || around.enum);
    schemas.push(...listed);
  }
  const words = new Set(schemas.flatMap((one) => [...Object.keys(one), one.format, ...[one.type].flat()]));
  const text = {side, at, byte, bytes, here: here ?? [], has: (...any) => any.some((word) => words.has(word))};
  return reasons.find(([, test]) => test(text))?.[0];
}

// The tokens as the other side has them: from the tokenizer's own file, in its notation.
function tokensOf(folder, texts) {
  if (folder === undefined) {
    const name = (bytes) => bytes.length === 1 && bytes[0] >= 0x80 || bytes.length === 1 ?
        '<0x' + bytes[0].toString(16).toUpperCase().padStart(2, '0') + '>' : bytes.toString().replaceAll(' ', '▁');
    return {tokens: texts.map((bytes) => bytes.length > 0 ? name(bytes) : '</s>'), type: 'byte_fallback'};
  }
  const json = JSON.parse(readFileSync(join(folder, 'tokenizer.json'), 'utf8'));
  const tokens = Array(texts.length).fill('');
  for (const [token, id] of Object.entries(json.model.vocab)) tokens[id] = token;
  for (const {content, id} of json.added_tokens) tokens[id] = content;
  tokens[texts.length - 1] = '</s>';
  return {tokens, type: json.model.byte_fallback ? 'byte_fallback' : 'byte_level'};
}

class Program {
  constructor(folder) {
    this.child = spawn(program, folder === undefined ? [] : [folder], {stdio: ['pipe', 'pipe', 'inherit']});
    this.lines = createInterface({input: this.child.stdout})[Symbol.asyncIterator]();
  }
  async ask(task) {
    this.child.stdin.write((typeof task === 'string' ? task : JSON.stringify(task)) + '\n');
    const {value, done} = await this.lines.next();
    if (done) throw new Error('the program ended at ' + JSON.stringify(task).slice(0, 200));
    return JSON.parse(value);
  }
}

class Comparison {
  constructor(folder) {
    this.name = folder === undefined ? 'bytes' : basename(folder);
    this.folder = folder;
    this.total = {schemas: 0, refused_there: 0, places: 0, equal: 0, equal_otherwise: 0};
    this.counts = {};  // [reason]: tokens, and of those that are judged how many are valid
    this.faults = [];
  }

  async run(groups) {
    this.program = new Program(this.folder);
    this.texts = (await this.program.ask('tokens')).map((digits) => Buffer.from(digits, 'hex'));
    this.end = this.texts.length - 1;
    this.total.tokens = this.texts.length;
    const {tokens, type} = tokensOf(this.folder, this.texts);
    this.byteIds = Array(256);
    this.texts.forEach((bytes, id) => {
      if (bytes.length === 1) this.byteIds[bytes[0]] ??= id;
    });
    const info = await TokenizerInfo.createTokenizerInfo(tokens, type, false, tokens.length, [this.end]);
    this.compiler = await GrammarCompiler.createGrammarCompiler(info);
    for (const group of groups) await this.compare(group);
    this.program.child.stdin.end();
  }

  async compare({description, schema}) {
    const source = {kind: 'json_schema', text: JSON.stringify(schema)};
    const drawn = await this.program.ask({...source, samples: +samples, seed: 7});
    const texts = drawn.samples.filter((sample) => sample.length < 400);
    const {masks} = await this.program.ask({...source, masks_of: texts});
    let compiled;
    try {
      compiled = await this.compiler.compileJSONSchema(source.text, true, undefined, undefined, false);
    } catch (error) {
      console.log(`${description}: refused there: ${String(error.message ?? error).slice(0, 100)}`);
      ++this.total.refused_there;
      return;
    }
    ++this.total.schemas;
    const ajv = new Ajv({strict: false, multipleOfPrecision: 3, validateSchema: false, ownProperties: true, logger: false});
    addFormats(ajv);
    const group = {description, schema, source, compiled, validate: ajv.compile(schema), judged: {}};
    const places = [];  // with tokens that only one side allows
    for (const [i, text] of texts.entries()) {
      const bytes = Buffer.from(text);
      const matcher = await GrammarMatcher.createGrammarMatcher(compiled);
      for (let at = 0; at <= bytes.length; ++at) {
        ++this.total.places;
        const place = {text, at, bytes: bytes.subarray(0, at), there: []};
        const here = this.differences(masks[i][at], await matcher.getNextTokenBitmask(), place.there);
        const isEqual = here.length === 0 && place.there.length === 0;
        if (isEqual) ++this.total.equal;
        else places.push(place);
        this.departFromThere(group, matcher, place, here);
        if (at < bytes.length && !matcher.acceptToken(this.byteIds[bytes[at]])) break;
      }
      matcher.dispose();
    }
    await this.departFromHere(group, places);
    const plain = reasons.slice(0, kPlain).map(([name]) => name);
    for (const {reasons} of places) {
      if ([...reasons.values()].every((reason) => plain.includes(reason))) ++this.total.equal_otherwise;
    }
    await this.judge(group);
  }

  // Pushes the tokens that only the other side allows, and returns those of this side.
  differences(digits, bits, there) {
    const here = [];
    for (let word = 0; word < bits.length; ++word) {
      const ours = parseInt(digits.slice(8 * word, 8 * word + 8), 16) | 0;
      for (let rest = ours ^ bits[word]; rest !== 0; rest &= rest - 1) {
        const bit = 31 - Math.clz32(rest & -rest);
        const id = 32 * word + bit;
        if (id <= this.end) ((ours >>> bit & 1) === 1 ? here : there).push(id);
      }
    }
    return here;
  }

  departFromThere(group, matcher, place, ids) {
    const refused = new Map();  // bytes of a token that the other side refuses, and no fewer
    for (const id of ids) {
      const bytes = this.texts[id];
      let n = 0;
      for (let known = 0; known < bytes.length && n === 0; ++known) {
        if (refused.has(bytes.toString('latin1', 0, known + 1))) n = known + 1;
      }
      if (n === 0 && id !== this.end) {
        while (n < bytes.length && matcher.acceptToken(this.byteIds[bytes[n]])) ++n;
        if (n > 0) matcher.rollBack(n);
        // A token whose bytes it accepts one by one departs at its end.
        n = Math.min(n + 1, bytes.length);
        refused.set(bytes.toString('latin1', 0, n), true);
      }
      this.count(group, 'here', place, id, n);
    }
  }

  async departFromHere(group, places) {
    const asked = places.filter((place) => place.there.length > 0);
    const {reaches = []} = await this.program.ask({
      ...group.source,
      reaches_of: asked.map(({text, at, there}) => ({text, at, tokens: there})),
    });
    for (const [i, place] of asked.entries()) {
      for (const [j, id] of place.there.entries()) {
        this.count(group, 'there', place, id, Math.min(reaches[i][j] + 1, this.texts[id].length));
      }
    }
  }

  // n: bytes of the token up to the one at which the other side departs.
  count(group, side, place, id, n) {
    const token = this.texts[id];
    const key = `${side} ${id === this.end} ${token.length === 0} ${token.toString('latin1', 0, n)}`;
    place.reasons ??= new Map();
    if (!place.reasons.has(key)) {
      const bytes = Buffer.concat([place.bytes, token.subarray(0, n)]);
      place.reasons.set(key, classify(group.schema, side, bytes, id === this.end ? null : token));
    }
    const reason = place.reasons.get(key) ?? 'unclassified';
    const entry = this.counts[reason] ??= {here: 0, there: 0, judged_here: 0, judged_there: 0, valid_there: 0};
    ++entry[side];
    const show = () => `${group.description}: only ${side}: ${id === this.end ? 'END' : JSON.stringify(token.toString())} ` +
        `(departs at byte ${n}) behind ${JSON.stringify(place.bytes.toString())}`;
    if (reason === 'unclassified') this.faults.push('no reason: ' + show());
    const judged = group.judged[reason + side] ??= [];
    if (judged.length < kJudged && token.length > 0) {
      judged.push({entry, side, show: show(), bytes: Buffer.concat([place.bytes, token])});
    }
  }

  async judge(group) {
    const all = Object.values(group.judged).flat();
    const ours = all.filter(({side}) => side === 'here');
    const {endings = []} = await this.program.ask({...group.source, endings_of: ours.map(({bytes}) => bytes.toString('hex'))});
    const isValid = (text) => {
      try {
        return group.validate(JSON.parse(text));
      } catch {
        return false;
      }
    };
    for (const [i, {entry, show}] of ours.entries()) {
      ++entry.judged_here;
      if (!isValid(endings[i])) this.faults.push(`not valid: ${show}: ${endings[i]}`);
    }
    for (const {entry, side, bytes} of all) {
      if (side !== 'there') continue;
      const text = await this.completeThere(group.compiled, bytes);
      if (text === null) continue;  // no end within some steps
      ++entry.judged_there;
      if (isValid(text)) ++entry.valid_there;
    }
  }

  // The text as the other side goes on with it, to an early end.
  async completeThere(compiled, bytes) {
    const matcher = await GrammarMatcher.createGrammarMatcher(compiled);
    const text = [...bytes];
    try {
      for (const byte of bytes) if (!matcher.acceptToken(this.byteIds[byte])) return null;
      const wanted = Buffer.from('"}],:10ae- ');
      for (let step = 0; step < kMostSteps; ++step) {
        const bits = await matcher.getNextTokenBitmask();
        const allows = (id) => (bits[id >> 5] >>> (id & 31) & 1) === 1;
        if (allows(this.end)) return Buffer.from(text).toString();
        const byte = [...wanted, ...Array(256).keys()].find((one) => allows(this.byteIds[one]));
        if (byte === undefined || !matcher.acceptToken(this.byteIds[byte])) return null;
        text.push(byte);
      }
      return null;
    } finally {
      matcher.dispose();
    }
  }
}

const groups = JSON.parse(readFileSync(file, 'utf8'));
const comparisons = [];
for (const folder of folders.length > 0 ? folders : [undefined]) {
  if (folder !== undefined && folder !== '-' && !existsSync(join(folder, 'tokenizer.json'))) throw new Error(`no tokenizer.json in ${folder}`);
  const comparison = new Comparison(folder === '-' ? undefined : folder);
  await comparison.run(groups);
  comparisons.push(comparison);
  console.log(`${comparison.name}: ${comparison.texts.length} tokens, ${JSON.stringify(comparison.total)}`);
}
const figures = ['tokens', 'places', 'equal', 'equal_otherwise'];  // otherwise: but for plain reasons
for (const {total} of comparisons) total.equal_otherwise += total.equal;
console.log(`\n| | ${comparisons.map(({name}) => name).join(' | ')} |\n|---|${'---|'.repeat(comparisons.length)}`);
for (const figure of figures) console.log(`| ${figure} | ${comparisons.map(({total}) => total[figure]).join(' | ')} |`);
console.log('\nTokens that only one side allows, and of those judged how many are valid\n');
console.log(`| reason | ${comparisons.map(({name}) => name).join(' | ')} |\n|---|${'---|'.repeat(comparisons.length)}`);
const names = [...reasons.map(([name]) => name), 'unclassified'];
const cell = (entry) => entry === undefined ? '' : [
  entry.here > 0 ? `${entry.here} here (${entry.judged_here} of ${entry.judged_here} valid)` : '',
  entry.there > 0 ? `${entry.there} there (${entry.valid_there} of ${entry.judged_there} valid)` : '',
].filter((text) => text !== '').join(', ');
for (const name of names) console.log(`| ${name} | ${comparisons.map(({counts}) => cell(counts[name])).join(' | ')} |`);
const faults = comparisons.flatMap(({name, faults}) => faults.map((fault) => `${name}: ${fault}`));
for (const fault of faults.slice(0, 60)) console.log(fault);
console.log(`${faults.length} faults`);
process.exit(faults.length > 0 ? 1 : 0);
