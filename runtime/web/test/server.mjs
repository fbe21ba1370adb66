/** A server for the tests: files with ranges, and on request with isolation, breaks in the middle, or no ranges. */
import fs from "node:fs";
import http from "node:http";
import path from "node:path";

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".onnx": "application/octet-stream" };

/** Serve `folders` (address prefix to folder) on a free port of this machine. `behaviour` may be changed at any time. */
export async function serve(folders) {
  const behaviour = { isolated: false, ranges: true, head: true, breakAfter: Infinity, down: false }, log = [];
  const server = http.createServer((request, response) => {
    const url = new URL(request.url, "http://localhost");
    log.push(`${request.method} ${url.pathname}${request.headers.range ? ` ${request.headers.range}` : ""}`);
    if (behaviour.down) return void response.destroy();
    const prefix = Object.keys(folders).find((name) => url.pathname.startsWith(name));
    const file = prefix && path.join(folders[prefix], decodeURIComponent(url.pathname.slice(prefix.length)));
    if (behaviour.isolated) {
      response.setHeader("cross-origin-opener-policy", "same-origin");
      response.setHeader("cross-origin-embedder-policy", "require-corp");
    }
    if (!file || !fs.existsSync(file) || fs.statSync(file).isDirectory()) return void response.writeHead(404).end();
    const { size, mtimeMs } = fs.statSync(file);
    response.setHeader("content-type", TYPES[path.extname(file)] ?? "application/octet-stream");
    response.setHeader("etag", `"${size}-${mtimeMs}"`);
    if (request.method === "HEAD") return void response.writeHead(behaviour.head ? 200 : 405, behaviour.head ? { "content-length": size } : {}).end();
    const range = behaviour.ranges && /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
    const start = range ? Number(range[1]) : 0, end = range && range[2] ? Number(range[2]) + 1 : size;
    response.writeHead(range ? 206 : 200, { "content-length": end - start, ...(range ? { "content-range": `bytes ${start}-${end - 1}/${size}` } : {}) });
    const bytes = fs.readFileSync(file).subarray(start, end);
    if (bytes.length <= behaviour.breakAfter) return void response.end(bytes);
    response.write(bytes.subarray(0, behaviour.breakAfter), () => setTimeout(() => response.destroy(), 100));
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  const close = () => new Promise((done) => { server.close(done); server.closeAllConnections(); });
  return { url: `http://127.0.0.1:${server.address().port}`, behaviour, log, close };
}
