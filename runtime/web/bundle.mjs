/** Bundles `src/` into `dist/`. */
import { build } from "esbuild";
import fs from "node:fs";
import path from "node:path";

const root = import.meta.dirname, dist = path.join(root, "dist"), src = path.join(root, "src");
const common = { bundle: true, minify: true, target: "es2022", legalComments: "inline", logLevel: "warning" };

await build({ ...common, entryPoints: [path.join(src, "node.ts")], outfile: path.join(dist, "node.mjs"), format: "esm", platform: "node", external: ["@huggingface/jinja"] });
await build({ ...common, entryPoints: [path.join(src, "node.ts")], outfile: path.join(dist, "node.cjs"), format: "cjs", platform: "node", external: ["@huggingface/jinja"] });
