/** Draws, forms, chats, scores and vectors as Python gives them. */
import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { after, test } from "node:test";
import { Conversation, load } from "../dist/node.mjs";
import { uniform } from "../dist/test.mjs";
import { bundled, camel, expectations, fixtures } from "./support.mjs";

const expected = expectations();
const tiny = await load(path.join(fixtures, "tiny.onnx"));
after(() => tiny.close());
const near = (made, wanted, within = 1e-5) => made.forEach((value, i) => assert.ok(Math.abs(value - wanted[i]) <= within * (1 + Math.abs(wanted[i])), `${i}: ${value}, ${wanted[i]}`));

test("random draws", () => {
  for (const [seed, sample, position, wanted] of expected.draws) assert.equal(uniform(BigInt(seed), sample, position), wanted);
});

test("texts held to choices and regular expressions", async () => {
  for (const { prompt, options, text, token_ids: ids, finish_reason: reason } of expected.constrained) {
    const made = await tiny.generate(prompt, camel(options));
    assert.deepEqual([made.text, made.tokenIds, made.finishReason], [text, ids, reason], JSON.stringify(options));
  }
});

test("chat prompts and answers, with and without a template", async () => {
  for (const { model, messages, options, prompt, text } of expected.chats) {
    const lm = await load(model);
    assert.deepEqual(await lm.chatPrompt(messages, camel(options)), prompt);
    assert.equal((await lm.chat(messages, { seed: 1, ...camel(options) })).text, text);
    await lm.close();
  }
});

test("scores and vectors", async () => {
  for (const wanted of expected.scores) {
    const lm = await load(wanted.model), score = await lm.score(wanted.text);
    near(score.logprobs, wanted.logprobs);
    near([score.perplexity, score.bitsPerByte], [wanted.perplexity, wanted.bits_per_byte]);
    near((await lm.score(wanted.text, { stride: 3 })).logprobs, wanted.short);
    const { topLogprobs: top } = await lm.score(wanted.text, { topLogprobs: 2 });
    assert.deepEqual(top.map((place) => place.map(([id]) => id)), wanted.top.map((place) => place.map(([id]) => id)));
    near(top.flat().map(([, value]) => value), wanted.top.flat().map(([, value]) => value));
    near([...(await lm.embed(wanted.text))], wanted.mean);
    const rows = await lm.embed("the thing", { pooling: "none" });
    rows.forEach((row, i) => near([...row], wanted.none[i]));
    assert.deepEqual([rows.length, (await lm.embed(["the", "thing"], { pooling: "none" })).length], [wanted.none.length, 2]);
    near([...(await lm.embed(wanted.text, { layer: "embeddings", pooling: "last", normalize: false }))], wanted.last);
    assert.equal((await lm.embed(["a", "b"])).length, 2);
    assert.deepEqual(await lm.embed("the", { prefix: "in " }), await lm.embed("in the"));
    await lm.close();
  }
});

test("one token is computed like many, bit for bit, in every form", async () => {
  for (const model of new Set(expected.logits.map(({ model }) => model))) {
    const lm = await load(model), length = Math.min(20, lm.info.contextLength);
    const ids = Array.from({ length }, (_, i) => (i * 37) % lm.info.vocabSize), together = await lm.logits(ids), other = await load(model);
    for (let i = 1; i <= length; i++) {
      const alone = (await other.logits(ids.slice(0, i))).at(-1);
      assert.deepEqual(alone, together[i - 1], `${path.basename(model)} at ${i}`);
    }
    await Promise.all([lm.close(), other.close()]);
  }
});

test("lookup, batches, samples and streams do not change texts", async () => {
  const lm = await load(bundled), options = { maxNewTokens: 60, temperature: 0.7, seed: 5 };
  const plain = await lm.generate("def a(self):\n    return self.a\n", { ...options, lookup: 0 });
  const looked = await lm.generate("def a(self):\n    return self.a\n", { ...options, reference: "def b(self):\n    return self.b\n" });
  assert.deepEqual(looked.tokenIds, plain.tokenIds);
  assert.ok(looked.stats.passes < plain.stats.passes);
  const [first, second] = await lm.generate(["import ", "def a(self):\n    return self.a\n"], options);
  assert.deepEqual(second.tokenIds, plain.tokenIds);
  assert.notEqual(first.text, second.text);
  const three = await lm.generate("def a(self):\n    return self.a\n", { ...options, n: 3 });
  assert.deepEqual(three[0].tokenIds, plain.tokenIds);
  assert.ok(new Set(three.map(({ text }) => text)).size > 1);
  const stream = lm.stream("def a(self):\n    return self.a\n", options), pieces = [];
  for await (const piece of stream) pieces.push(piece.text);
  assert.equal(pieces.join(""), plain.text);
  assert.ok(stream.stats.tokens === 60 && stream.stats.seconds > 0);
  await lm.close();
});

test("calls may overlap, and each gives what it gives alone", async () => {
  const alone = await tiny.generate("in the", { maxNewTokens: 20 });
  const made = await Promise.all([tiny.generate("in the", { maxNewTokens: 20 }), tiny.score("the in"), tiny.generate("in the", { maxNewTokens: 20 })]);
  assert.deepEqual([made[0].tokenIds, made[2].tokenIds], [alone.tokenIds, alone.tokenIds]);
});

test("limits: signals, time, overflow", async () => {
  const abort = new AbortController();
  abort.abort();
  assert.equal((await tiny.generate("a", { signal: abort.signal })).finishReason, "cancelled");
  assert.equal((await tiny.generate("a", { maxTime: 1e-9 })).finishReason, "time");
  assert.equal((await tiny.generate("a".repeat(30), { overflow: "stop" })).finishReason, "context");
  await assert.rejects(tiny.generate("a", { overflow: "error", maxNewTokens: 100 }), /exceed the context of 24; shorten/);
  assert.equal((await tiny.generate("a", { maxNewTokens: 0 })).tokenIds.length, 0);
});

test("a conversation remembers, and forgets the oldest when full", async () => {
  const lm = await load(path.join(fixtures, "chat.onnx")), talk = new Conversation(lm, "Be brief.");
  for (const text of ["One", "Two", "Three", "Four", "Five", "Six", "Seven"]) for await (const piece of talk.ask(text)) assert.equal(typeof piece.text, "string");
  assert.equal(talk.messages[0].role, "system");
  assert.ok(talk.forgotten > 0);
  assert.equal(talk.messages.length % 2, 1);
  await lm.close();
});

test("special tokens in an answer are shown on request", async () => {
  const lm = await load(path.join(fixtures, "chat.onnx")), [id] = [lm.info.special["<|im_start|>"]];
  const options = { forcedTokens: [104, id, 105], maxNewTokens: 3 };
  assert.equal((await lm.generate("a", options)).text, "hi");
  assert.equal((await lm.generate("a", { ...options, keepSpecial: true })).text, "h<|im_start|>i");
  const pieces = [];
  for await (const piece of lm.stream("a", { forcedTokens: [104, lm.info.special["<|im_end|>"]], logprobs: 0 })) pieces.push(piece);
  assert.deepEqual([pieces.at(-1).finishReason, pieces.at(-1).endId, pieces.at(-1).tokenId], ["end", lm.info.special["<|im_end|>"], null]);
  assert.ok(pieces.at(-1).logprob < 0);
  await lm.close();
});

test("options that cannot be are refused by name", async () => {
  for (const [options, message] of [
    [{ temperature: -1 }, /temperature is -1; give a number of at least 0/], [{ topP: 0 }, /topP is 0; give a number above 0 up to 1/],
    [{ nonsense: 1 }, /unknown option "nonsense"; known are/], [{ jsonSchema: {} }, /jsonSchema is not supported in JavaScript/],
    [{ seed: -1 }, /seed is -1/], [{ seed: 2n ** 64n }, /seed is 18446744073709551616/], [{ stop: "x" }, /stop is "x"; give a list/],
    [{ bannedTokens: [999] }, /token id 999 is outside the vocabulary of 260/], [{ regex: "(?=a)" }, /regex is "\(\?=a\)", with \(\?=/],
    [{ regex: "a", choices: ["b"] }, /exclude each other/], [{ allowedSpecial: ["<x>"] }, /unknown special token "<x>"/], [{ lookup: 2000 }, /lookup is 2000/],
    [{ logitBias: { 5: NaN } }, /logitBias of 5/], [{ regex: "a{99999}{99}" }, /too large/],
  ]) await assert.rejects(tiny.generate("a", options), message);
  await assert.rejects(tiny.generate([]), /the prompt is empty|there is no prompt/);
  await assert.rejects(tiny.generate([1, 999]), /outside the vocabulary/);
  await assert.rejects(tiny.generate(7), /the prompt is 7/);
  await assert.rejects(load(bundled, { nonsense: 1 }), /unknown option "nonsense"/);
  await assert.rejects(load("/nowhere/model.onnx"), /cannot read .*ENOENT; check the path/);
  await assert.rejects(tiny.chat([{ role: "robot", content: "" }]), /role "robot"; choose one of/);
  await assert.rejects(tiny.chat([{ role: "user", content: [{ type: "image_url" }] }]), /a part of a message is "image_url"; edgelm takes/);
  await assert.rejects(tiny.score("the thing", { topLogprobs: -1 }), /topLogprobs is -1/);
});

test("logits that are not numbers are an error", async () => {
  const bytes = fs.readFileSync(path.join(fixtures, "broken.onnx"));
  await assert.rejects(load(bytes), /VerificationError|gives other logits than at its export: off by NaN/);
  bytes.write("g0lden", bytes.indexOf("edgelm.golden") + 7); // a file without what would be seen at load
  const broken = await load(bytes);
  await assert.rejects(broken.generate("the the the"), /NumericsError|not finite/);
  await assert.rejects(broken.score("the the the x"), /not finite/);
  await broken.close();
});

test("several threads give the same text", async () => {
  const one = await load(bundled), two = await load(bundled, { threads: 2 });
  const texts = await Promise.all([one, two].map((lm) => lm.generate("class Stack:", { maxNewTokens: 30 })));
  assert.equal(texts[0].text, texts[1].text);
  await Promise.all([one.close(), two.close()]);
});
