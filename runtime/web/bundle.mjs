/** Bundles `src/` into `dist/`: one build for pages, two for Node. */
import { build } from "esbuild";
import fs from "node:fs";
import path from "node:path";

const dist = path.join(import.meta.dirname, "dist"), src = path.join(import.meta.dirname, "src");
const common = { bundle: true, minify: true, target: "es2022", legalComments: "none", logLevel: "warning" };
const entry = (name) => [path.join(src, name)];

// What runs in a page's worker comes inside of what runs in the page, as text.
await build({ ...common, entryPoints: entry("worker/core.ts"), outfile: path.join(dist, "worker.js"), format: "esm", external: ["node:*"] });
const core = fs.readFileSync(path.join(dist, "worker.js"), "utf8");
fs.writeFileSync(path.join(src, "worker", "core.generated.ts"), `// Made by bundle.mjs from core.ts.\nexport const CORE = ${JSON.stringify(core)};\n`);

const page = { ...common, entryPoints: entry("browser.ts"), format: "esm" };
await build({ ...page, outdir: dist, splitting: true, chunkNames: "[name]" });
await build({ ...page, outfile: path.join(dist, "edgelm.js") });
const node = { ...common, entryPoints: entry("node.ts"), platform: "node" };
await build({ ...node, outfile: path.join(dist, "node.mjs"), format: "esm" });
await build({ ...node, outfile: path.join(dist, "node.cjs"), format: "cjs" });
await build({ ...common, entryPoints: entry("testing.ts"), outfile: path.join(dist, "test.mjs"), format: "esm", platform: "node" });
