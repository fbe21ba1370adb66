/** The page that `edgelm web` writes, in Chromium: by keyboard alone, offline, light and dark, verified. */
import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";
import { serve } from "./server.mjs";
import { chromiumPath, data, root } from "./support.mjs";

let server, browser;
before(async () => {
  server = await serve({ "/chat/": path.join(data, "page-chat"), "/": path.join(data, "page") });
  browser = await chromium.launch({ executablePath: chromiumPath(), args: ["--no-sandbox"] });
});
after(async () => {
  await browser?.close();
  await server?.close();
});

async function open(address, options = {}) {
  const page = await browser.newPage(options), wrong = [];
  page.on("pageerror", (error) => wrong.push(error.message));
  page.on("console", (message) => message.type() === "error" && wrong.push(message.text()));
  page.on("request", (request) => request.url().startsWith("http") && !request.url().startsWith(server.url) && wrong.push(request.url()));
  await page.goto(server.url + address);
  await page.waitForSelector("#go:enabled");
  return [page, wrong];
}
const finished = (page) => page.waitForFunction(() => !document.querySelector("#go").disabled && !/Writing/.test(document.querySelector("#state").textContent));

test("the copy that Python writes is the one that is built", () => {
  const written = fs.readFileSync(path.join(root, "..", "..", "edgelm", "web_page", "edgelm.js"), "utf8");
  assert.ok(written === fs.readFileSync(path.join(root, "dist", "edgelm.js"), "utf8"), "run `node build.mjs --page` in runtime/web and commit the result");
});

test("a text is continued, stopped and undone by the keyboard alone", async () => {
  const [page, wrong] = await open("/index.html");
  assert.equal(await page.textContent("h1"), 'A "small" <model>');
  assert.equal(await page.evaluate(() => document.activeElement.id), "prompt", "one can write at once");
  await page.keyboard.type("def main(");
  await page.keyboard.press("Control+Enter");
  await finished(page);
  assert.ok((await page.inputValue("#prompt")).length > 30);
  assert.match(await page.inputValue("#speed").catch(() => page.textContent("#speed")), /tokens per second/);
  await page.fill("[name=maxNewTokens]", "100000", { force: true });
  await page.focus("#prompt");
  await page.keyboard.press("Control+Enter");
  await page.waitForSelector("#stop:enabled");
  await page.keyboard.press("Escape");
  await finished(page);
  assert.match(await page.textContent("#state"), /Stopped/);
  await page.focus("#again");
  await page.keyboard.press("Enter");
  await page.focus("#verify");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => /The file is whole/.test(document.querySelector("#verified").textContent));
  assert.deepEqual(wrong, []);
  await page.close();
});

test("a model with a template chats, and the page needs no network any more", async () => {
  const [page, wrong] = await open("/chat/index.html");
  server.behaviour.down = true;
  await page.keyboard.type("Hello");
  await page.keyboard.press("Enter");
  await finished(page);
  assert.deepEqual(await page.$$eval("#messages li", (items) => items.map((item) => item.className)), ["user", "assistant"]);
  await page.click("#again");
  assert.equal(await page.$$eval("#messages li", (items) => items.length), 0);
  server.behaviour.down = false;
  assert.deepEqual(wrong, []);
  await page.close();
});

test("every control has a name, and text stands out from its ground, light and dark", async () => {
  for (const colorScheme of ["light", "dark"]) {
    const [page] = await open("/index.html", { colorScheme });
    await page.click("summary");
    const { nameless, contrasts } = await page.evaluate(() => {
      const named = (control) => control.labels?.length || control.textContent.trim() || control.getAttribute("aria-label");
      const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
      const light = (color) => {
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
          const { backgroundColor } = getComputedStyle(at);
          if (!/rgba\(0, 0, 0, 0\)|transparent/.test(backgroundColor)) return backgroundColor;
        }
        return "white";
      };
      const shown = [...document.querySelectorAll("h1, p, label, textarea, input, button:enabled, dt, dd, summary")].filter((element) => element.offsetParent);
      return {
        nameless: [...document.querySelectorAll("button, input, textarea")].filter((control) => !named(control)).map((control) => control.outerHTML),
        contrasts: shown.map((element) => {
          const [a, b] = [light(getComputedStyle(element).color), light(ground(element))].sort((x, y) => y - x);
          return [(a + 0.05) / (b + 0.05), element.outerHTML.slice(0, 60)];
        }),
      };
    });
    assert.deepEqual(nameless, []);
    for (const [contrast, element] of contrasts) assert.ok(contrast >= 4.5, `${colorScheme}: ${contrast.toFixed(2)} ${element}`);
    await page.close();
  }
});
