/** What the tests share: the built package, and what the Python package answers. */
import fs from "node:fs";
import path from "node:path";

export const root = path.join(import.meta.dirname, "..");
export const data = path.join(root, "test", "data");
export const fixtures = path.join(root, "..", "..", "tests", "runtime", "data");
export const bundled = path.join(root, "..", "..", "models", "python.onnx");

/** `expectations.json`, made by expectations.py. */
export const expectations = () => JSON.parse(fs.readFileSync(path.join(data, "expectations.json"), "utf8"));

/** Options by Python's names, by JavaScript's. */
export function camel(options) {
  const value = (v) => (v === "-inf" ? -Infinity : v);
  return Object.fromEntries(Object.entries(options).map(([name, v]) => [
    name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase()),
    name === "logit_bias" ? Object.fromEntries(Object.entries(v).map(([k, x]) => [k, value(x)])) : value(v),
  ]));
}

/** Float32 rows of `width` from base64. */
export function rows(base64, width) {
  const bytes = Buffer.from(base64, "base64"), all = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
  return Array.from({ length: all.length / width }, (_, i) => all.subarray(i * width, (i + 1) * width));
}

/** Where a Chromium lies; CHROMIUM names another. */
export function chromiumPath() {
  const found = process.env.CHROMIUM ?? ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(fs.existsSync);
  if (!found) throw new Error("no Chromium is installed: apt-get install chromium, or set CHROMIUM to its path");
  return found;
}
