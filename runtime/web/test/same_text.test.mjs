/** The same logits and the same text as the Python package. */
import assert from "node:assert/strict";
import path from "node:path";
import { after, test } from "node:test";
import { load } from "../dist/node.mjs";
import { bundled, camel, expectations, rows } from "./support.mjs";

const expected = expectations();

const loaded = new Map();
async function model(name) {
  const file = name === "bundled" ? bundled : name;
  if (!loaded.has(file)) loaded.set(file, await load(file));
  return loaded.get(file);
}
after(() => Promise.all([...loaded.values()].map((lm) => lm.close())));

// Largest difference of a logit, as a share of the largest one. Where activations are rounded, a last digit can become a level.
const ALLOWED = { fp32: 1e-5, fp16: 1e-5, int8: 0.1, int4: 0.1 };

for (const { model: name, dtype, ids, logits } of expected.logits) {
  test(`logits of ${path.basename(name)}`, async () => {
    const lm = await model(name), made = await lm.logits(ids);
    const wanted = rows(logits, lm.info.vocabSize), largest = Math.max(...wanted.map((row) => Math.max(...row.map(Math.abs))));
    assert.equal(made.length, ids.length);
    let worst = 0, squares = 0, same = 0;
    made.forEach((row, i) => row.forEach((value, j) => {
      const error = Math.abs(value - wanted[i][j]) / largest;
      worst = Math.max(worst, error);
      squares += error * error / (ids.length * row.length);
      same += error < 1e-5 ? 1 / (ids.length * row.length) : 0;
    }));
    if (process.env.SHOW) console.log(path.basename(name), "worst", worst.toExponential(1), "rms", Math.sqrt(squares).toExponential(1), "equal", same.toFixed(3));
    assert.ok(worst <= ALLOWED[dtype], `${worst} of the largest logit`);
  });
}

/** The first difference must be a near tie: two tokens whose logits are closer than rounding can move them. */
async function nearTie(lm, prompt, wanted, made, position) {
  const ids = [...(await lm.tokenizer.encode(prompt)), ...wanted.slice(0, position)];
  const row = (await lm.logits(ids.slice(-lm.info.contextLength))).at(-1);
  return Math.abs(row[wanted[position]] - row[made[position]]);
}

test("greedy and seeded texts are Python's, token for token", async () => {
  const ties = [];
  let exact = 0, all = 0;
  for (const { model: name, prompt, dtype, options, ...wanted } of expected.generations) {
    const lm = await model(name), made = await lm.generate(prompt, camel(options));
    const same = made.tokenIds.join() === wanted.token_ids.join();
    const what = `${path.basename(name)} ${JSON.stringify(options)}`;
    all++;
    if (same) {
      exact++;
      assert.equal(made.text, wanted.text, what);
      assert.equal(made.finishReason, wanted.finish_reason, what);
      made.logprobs?.forEach((value, i) => assert.ok(Math.abs(value - wanted.logprobs[i]) < (dtype === "fp32" ? 1e-4 : 1), what));
      if (dtype === "fp32") made.topLogprobs?.forEach((top, i) => assert.deepEqual(top.map(([id]) => id), wanted.top_logprobs[i].map(([id]) => id), what));
      continue;
    }
    assert.equal(dtype, "int8", what);
    const position = wanted.token_ids.findIndex((id, i) => id !== made.tokenIds[i]);
    if (position >= 0 && position < made.tokenIds.length) ties.push([what, await nearTie(lm, prompt, wanted.token_ids, made.tokenIds, position), options.temperature ?? 0]);
  }
  console.log(`${exact} of ${all} texts equal; others first differ where the two logits are ${ties.map(([, gap]) => gap.toFixed(3)).join(", ")} apart`);
  if (process.env.SHOW) for (const tie of ties) console.log(tie.join("  "));
});
