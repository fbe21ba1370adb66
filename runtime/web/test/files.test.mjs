/** Model files: every golden vector, digests, damage anywhere, onnxruntime as oracle. */
import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { test } from "node:test";
import * as ort from "onnxruntime-web";
import { load } from "../dist/node.mjs";
import { bytesSource, checkConfig, fileDigest } from "../dist/test.mjs";
import { bundled, data, fixtures } from "./support.mjs";

const files = [bundled, ...fs.readdirSync(data).filter((name) => name.endsWith(".onnx")).map((name) => path.join(data, name))];

for (const file of files) {
  test(`${path.basename(file)} verifies`, async () => {
    const lm = await load(file), report = await lm.verify();
    if (process.env.SHOW) console.log(path.basename(file), JSON.stringify(report));
    assert.ok(report.prompts > 0);
    await lm.close();
  });
}

test("digests are Python's", async () => {
  const bytes = fs.readFileSync(bundled), lm = await load(bytes);
  assert.equal((await fileDigest(bytesSource(bytes), null)).graph, lm.info.digest);
  await lm.close();
});

test("onnxruntime runs the same files: as oracle, and on request", async () => {
  ort.env.wasm.numThreads = 1;
  for (const [file, within] of [[path.join(fixtures, "tiny.onnx"), 1e-4], [path.join(fixtures, "cached.onnx"), 1e-4], [bundled, 0.6]]) {
    const own = await load(file), theirs = await load(file, { onnxruntime: ort }), ids = await own.tokenizer.encode("the thing in the");
    const [a, b] = await Promise.all([own.logits(ids), theirs.logits(ids)]);
    a.forEach((row, i) => row.forEach((value, j) => assert.ok(Math.abs(value - b[i][j]) < within, `${file} ${i} ${j}: ${value} ${b[i][j]}`)));
    assert.equal((await theirs.generate("the thing", { maxNewTokens: 10 })).tokenIds.length, 10);
    await Promise.all([own.close(), theirs.close()]);
  }
});

test("damaged files are refused, wherever they are cut or changed", async () => {
  const bytes = fs.readFileSync(path.join(fixtures, "tiny.onnx"));
  for (let at = 0; at < bytes.length; at += 997) {
    await assert.rejects(load(bytes.subarray(0, at)), (error) => error.name === "ModelFileError", `cut at ${at}`);
  }
  for (let at = 3; at < bytes.length; at += 499) {
    const changed = Buffer.from(bytes);
    changed[at] ^= 0x55;
    const error = await load(changed).then(async (lm) => {
      const found = await lm.verify().then(() => null, (e) => e);
      await lm.close();
      return found;
    }, (e) => e);
    assert.ok(error === null || ["ModelFileError", "VerificationError"].includes(error.name), `changed at ${at}: ${error?.stack}`);
    assert.ok(error !== null, `a change at ${at} is not seen`);
  }
});

test("models with parts that are not computed here are refused by name", () => {
  const flags = Object.fromEntries(["norm_bias", "gated_mlp", "qkv_bias", "attention_bias", "mlp_bias", "head_bias", "tied_head",
    "query_key_norm", "parallel_residual", "post_norm"].map((field) => [field, true]));
  const counts = Object.fromEntries(["vocab_size", "context_length", "width", "num_layers", "num_heads", "num_kv_heads", "head_dim",
    "mlp_width", "norm_eps", "rope_theta", "rotary_dim", "sliding_window", "local_rope_theta", "attention_scale", "embedding_scale",
    "attention_softcap", "logit_softcap", "dropout"].map((field) => [field, 1]));
  const config = { ...flags, ...counts, norm: "rmsnorm", activation: "silu", position: "rotary", rope_scaling: null, local_layers: [true], init: "gpt2" };
  assert.equal(checkConfig(config, "m.onnx").num_experts, 0);
  assert.throws(() => checkConfig({ ...config, num_experts: 8, experts_per_token: 2 }, "m.onnx"), /m\.onnx has 8 experts in each layer, which/);
  assert.throws(() => checkConfig({ ...config, convolution_layers: [true], convolution_length: 3 }, "m.onnx"), /m\.onnx has convolutions/);
});

/** The file with `to` in the place of `from`, filled up with spaces to the same length. */
function changed(bytes, from, to) {
  const copy = Buffer.from(bytes), at = copy.indexOf(from);
  assert.ok(at >= 0 && to.length <= from.length, from);
  copy.write(to.padEnd(from.length), at, "latin1");
  return copy;
}

test("what a file asks for and this engine does not know is refused by name, not left out", async () => {
  const bytes = fs.readFileSync(path.join(fixtures, "tiny.onnx"));
  for (const [from, to, message] of [
    ['"attention_scale":0.35355339059327373', '"attention_scale":1,"num_wheels":2', /has the unknown model field num_wheels; update edgelm/],
    ['"parallel_residual":false', '"parallel_residual":2', /has parallel_residual = 2 in its configuration/],
    ['"init":"gpt2","local_layers":[],"local_rope_theta":0.0,"logit_softcap":0.0,"mlp_bias":true', '"init":"","local_layers":[],"local_rope_theta":0.0,"logit_softcap":0.0,"mlp_bias":false',
      /has the weight blocks\.0\.mlp\.\w+\.bias, which this engine does not know; update edgelm/],
    ['{"pattern":"[ ', '{"habit":"[ ', /has a tokenizer that cannot be read: the tokenizer has the unknown field habit/],
    ['"activation":"gelu_tanh"', '"activation":"relu"', /VerificationError: .* than at its export/], // seen at load, by a golden vector
  ]) await assert.rejects(load(changed(bytes, from, to)), (error) => assert.match(`${error.name}: ${error.message}`, message) ?? true);
});

test("a model beside whose file its weights lie", async () => {
  const file = path.join(data, "beside", "m.onnx"), lm = await load(file);
  assert.ok((await lm.verify()).prompts > 0);
  await lm.close();
  await assert.rejects(load(fs.readFileSync(file)), /keeps its weights in a file beside it; give it as the option sidecar/);
});

test("files of other kinds are refused by name", async () => {
  await assert.rejects(load(path.join(fixtures, "foreign.onnx")), /without edgelm's metadata/);
  await assert.rejects(load(Buffer.from("hello, this is no model")), /is not an ONNX model|is cut off/);
  await assert.rejects(load(new Uint8Array(0)), /is empty/);
  const bytes = fs.readFileSync(path.join(fixtures, "tiny.onnx")), at = bytes.indexOf("edgelm.format");
  const newer = Buffer.from(bytes);
  newer[bytes.indexOf("1", at)] = 0x37;
  await assert.rejects(load(newer), /is of format 7, and this edgelm reads format 1; update edgelm/);
});
