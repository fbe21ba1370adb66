/** Token ids equal Python's on a mixed corpus, for every kind of tokenizer that imports make. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Tokenizer } from "../dist/test.mjs";
import { expectations } from "./support.mjs";

const expected = expectations();

for (const { kind, values, texts, special } of expected.tokenizers) {
  test(`${kind}: ${texts.length} texts`, () => {
    const tokenizer = new Tokenizer(values);
    for (const [text, ids, decoded] of texts) {
      assert.deepEqual(tokenizer.encode(text), ids, JSON.stringify(text));
      assert.equal(tokenizer.decode(ids), decoded, JSON.stringify(text));
    }
    for (const [text, allowed, ordinary] of special) {
      assert.deepEqual(tokenizer.encode(text, "all"), allowed, text);
      assert.deepEqual(tokenizer.encode(text), ordinary, text);
    }
  });
}
