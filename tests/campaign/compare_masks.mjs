// Compares masks with another implementation's, xgrammar (npm: @mlc-ai/web-xgrammar@0.1.27).
//
// usage: compare_masks.mjs NODE_MODULES SAMPLE_CONSTRAINT SAMPLES FILE, a file as json_schema_client.mjs
// reads it. Along random texts of each schema, byte by byte, it counts the tokens that only one of the
// two allows, but for white space and bytes that are not UTF-8. docs/constraints.md names the reasons.
import {spawn} from 'node:child_process';
import {readFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import {dirname} from 'node:path';
import {createInterface} from 'node:readline';

const [modules, program, samples, file] = process.argv.slice(2);
const require = createRequire(modules + '/');
const entry = require.resolve('@mlc-ai/web-xgrammar');
// The package says that it is a module, but is a script of CommonJS.
const exported = {};
new Function('exports', 'module', 'require', '__filename', '__dirname', readFileSync(entry, 'utf8'))(
    exported, {exports: exported}, createRequire(entry), entry, dirname(entry));
const {GrammarCompiler, GrammarMatcher, TokenizerInfo} = exported;

const child = spawn(program, {stdio: ['pipe', 'pipe', 'inherit']});
const lines = createInterface({input: child.stdout})[Symbol.asyncIterator]();
const ask = async (line) => {
  child.stdin.write(line + '\n');
  return JSON.parse((await lines.next()).value);
};

const others = await ask('tokens');
const hex = (byte) => '<0x' + byte.toString(16).toUpperCase().padStart(2, '0') + '>';
const tokens = [...Array(256).keys()].map(hex).concat(others.map((text) => text.replaceAll(' ', '▁')));
const end = tokens.length - 1;
tokens[end] = '</s>';
const show = (id) => id === end ? 'END' : id < 256 ? JSON.stringify(String.fromCharCode(id)) : JSON.stringify(others[id - 256]);
const info = await TokenizerInfo.createTokenizerInfo(tokens, 'byte_fallback', false, tokens.length, [end]);
const compiler = await GrammarCompiler.createGrammarCompiler(info);

// White space is bounded here, and a text is UTF-8.
const isNamed = (id, there) =>
    there && (id < 256 ? [9, 10, 13, 32, 0xc0, 0xc1].includes(id) || id >= 0xf5 : /^\s+$/.test(others[id - 256] || 'x'));
const total = {schemas: 0, places: 0, equal: 0, refused_there: 0};
for (const {description, schema} of JSON.parse(readFileSync(file, 'utf8'))) {
  const text = JSON.stringify(schema);
  const drawn = await ask(JSON.stringify({kind: 'json_schema', text, samples: +samples, seed: 7}));
  const texts = drawn.samples.filter((sample) => sample.length < 400);
  const {masks} = await ask(JSON.stringify({kind: 'json_schema', text, masks_of: texts}));
  let compiled;
  try {
    compiled = await compiler.compileJSONSchema(text, true, undefined, undefined, false);
  } catch (error) {
    console.log(`${description}: refused there: ${String(error.message ?? error).slice(0, 100)}`);
    ++total.refused_there;
    continue;
  }
  ++total.schemas;
  const only = {here: {}, there: {}}, first = {};
  for (const [i, sample] of texts.entries()) {
    const matcher = await GrammarMatcher.createGrammarMatcher(compiled);
    const bytes = Buffer.from(sample);
    for (const [at, allowed] of masks[i].entries()) {
      const here = new Set(allowed);
      const bits = await matcher.getNextTokenBitmask();
      let equal = true;
      for (let id = 0; id < tokens.length; ++id) {
        const there = (bits[id >> 5] >>> (id & 31) & 1) === 1;
        if (there === here.has(id) || isNamed(id, there)) continue;
        equal = false;
        const side = there ? 'there' : 'here';
        const name = show(id);
        only[side][name] = (only[side][name] ?? 0) + 1;
        first[side] ??= `${name} behind ${JSON.stringify(bytes.subarray(0, at).toString())}`;
      }
      ++total.places;
      if (equal) ++total.equal;
      if (at < bytes.length && !matcher.acceptToken(bytes[at])) break;
    }
    matcher.dispose();
  }
  const list = (side) => Object.entries(only[side]).sort((a, b) => b[1] - a[1]).slice(0, 8).map(([name, n]) => `${name} ${n}`).join(', ');
  for (const side of ['here', 'there']) {
    if (first[side]) console.log(`${description}: only ${side}: ${list(side)}; first ${first[side]}`);
  }
}
child.stdin.end();
console.log(JSON.stringify(total));
process.exit(0);
