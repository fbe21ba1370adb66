/** The page: a text that the model continues, or a conversation with it. */
import { Conversation, load, tokensPerSecond } from "./edgelm.js";

const settings = JSON.parse(document.body.dataset.settings);
const byId = (id) => document.getElementById(id);
const form = byId("form"), prompt = byId("prompt"), go = byId("go"), stop = byId("stop"), again = byId("again"), messages = byId("messages");
const DEFAULTS = { max_new_tokens: "maxNewTokens", temperature: "temperature", top_k: "topK", top_p: "topP", min_p: "minP", repeat_penalty: "repeatPenalty" };
const REASONS = { end: "The model ended here.", stop: "Stopped at the text to stop at.", length: "All new tokens are used.", cancelled: "Stopped.", context: "The context is full.", time: "" };
let lm, talk, working = null, before = null;

const chatting = () => document.querySelector("[name=mode]:checked").value === "chat";

function fail(error) {
  byId("error").textContent = error.message;
  byId("error").hidden = false;
  byId("loading").hidden = true;
  console.error(error);
}

function options() {
  const { seed, stop: stopAt, system, ...numbers } = Object.fromEntries([...form.querySelectorAll("#options input")].map((input) => [input.name, input.value]));
  const made = Object.fromEntries(Object.entries(numbers).map(([name, value]) => [name, Number(value)]));
  if (seed !== "") made.seed = Number(seed);
  if (stopAt !== "") made.stop = [stopAt];
  return made;
}

/** Which buttons can be pressed now. */
function update() {
  const busy = working !== null, chat = chatting();
  go.disabled = busy || !lm;
  stop.disabled = !busy;
  prompt.disabled = !lm;
  prompt.readOnly = busy;
  again.disabled = busy || (chat ? !messages.children.length : before === null);
  byId("verify").disabled = busy || !lm;
  for (const input of document.querySelectorAll("[name=mode]")) input.disabled = busy;
}

/** Show the pieces of a stream as they come, by `show`; gives what was made. */
async function follow(stream, show) {
  working = new AbortController();
  byId("state").textContent = "Writing …";
  update();
  try {
    let last = null, text = "";
    for await (const piece of stream(working.signal)) {
      text += piece.text;
      show(piece.text);
      last = piece;
    }
    byId("state").textContent = REASONS[last?.finishReason] ?? "";
    return text;
  } catch (error) {
    byId("state").textContent = error.message;
    return "";
  } finally {
    working = null;
    update();
  }
}

function timed(stream) {
  const speed = byId("speed");
  return (async function* () {
    for await (const piece of stream) {
      const rate = tokensPerSecond(stream.stats);
      if (rate) speed.value = `${rate.toFixed(rate < 10 ? 1 : 0)} tokens per second`;
      yield piece;
    }
  })();
}

async function continueText() {
  before = prompt.value;
  await follow((signal) => timed(lm.stream(prompt.value, { ...options(), signal })), (text) => {
    const atEnd = prompt.scrollTop + prompt.clientHeight >= prompt.scrollHeight - 4;
    prompt.value += text;
    if (atEnd) prompt.scrollTop = prompt.scrollHeight;
  });
  prompt.focus();
}

function addMessage(role, content) {
  const item = document.createElement("li"), name = document.createElement("b"), text = document.createElement("span");
  item.className = role;
  name.textContent = role === "user" ? "You" : "Model";
  text.textContent = content;
  item.append(name, text);
  messages.append(item);
  return text;
}

async function ask() {
  const question = prompt.value.trim();
  if (!question) return prompt.focus();
  const system = form.elements.system.value.trim();
  if (!talk || (!talk.messages.some(({ role }) => role === "user") && talk.system !== system)) talk = new Conversation(lm, system || undefined);
  addMessage("user", question);
  const answer = addMessage("assistant", "");
  prompt.value = "";
  messages.setAttribute("aria-busy", "true"); // read out when it is whole
  const started = performance.now();
  let count = 0;
  await follow((signal) => talk.ask(question, { ...options(), signal }), (text) => {
    answer.textContent += text;
    byId("speed").value = `${(++count / ((performance.now() - started) / 1000)).toFixed(0)} tokens per second`;
    answer.parentElement.scrollIntoView({ block: "nearest" });
  });
  messages.setAttribute("aria-busy", "false");
  prompt.focus();
}

function undo() {
  if (chatting()) {
    talk = null;
    messages.replaceChildren();
    byId("state").textContent = "A new conversation.";
  } else {
    prompt.value = before;
    before = null;
    byId("state").textContent = "";
  }
  update();
  prompt.focus();
}

function changeMode() {
  const chat = chatting();
  byId("talk").hidden = byId("system-label").hidden = !chat;
  byId("prompt-label").textContent = chat ? "Your message" : "Text to continue";
  prompt.rows = chat ? 3 : 9;
  go.textContent = chat ? "Send" : "Continue";
  again.textContent = chat ? "New conversation" : "Undo";
  update();
}

async function verify() {
  const said = byId("verified");
  byId("verify").disabled = true;
  said.textContent = "Replaying what the model must answer …";
  try {
    const { prompts, tokens, maxAbsError } = await lm.verify();
    said.textContent = `The file is whole, and this browser computes what was exported: ${tokens} tokens of ${prompts} prompts, largest error ${maxAbsError.toExponential(1)}.`;
  } catch (error) {
    said.textContent = error.message;
  }
  update();
}

function facts() {
  const { config, contextLength, vocabSize, digest } = lm.info;
  const rows = {
    Architecture: `${config.num_layers} layers, width ${config.width}, ${config.num_heads} heads`, Context: `${contextLength} tokens`,
    Vocabulary: `${vocabSize} tokens`, Loaded: `in ${lm.loadSeconds.toFixed(2)} s`, "SHA-256": digest,
  };
  for (const [name, value] of Object.entries(rows)) {
    const term = document.createElement("dt"), said = document.createElement("dd");
    [term.textContent, said.textContent] = [name, value];
    byId("facts").append(term, said);
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!working && lm) void (chatting() ? ask() : continueText());
});
prompt.addEventListener("keydown", (event) => {
  const sends = event.key === "Enter" && (event.ctrlKey || event.metaKey || (chatting() && !event.shiftKey && !event.isComposing));
  if (!sends) return;
  event.preventDefault();
  form.requestSubmit();
});
document.addEventListener("keydown", (event) => event.key === "Escape" && working?.abort());
stop.addEventListener("click", () => working?.abort());
again.addEventListener("click", undo);
byId("verify").addEventListener("click", verify);
byId("modes").addEventListener("change", changeMode);

try {
  lm = await load(settings.model, {
    ...(settings.sidecar ? { sidecar: settings.sidecar } : {}), ...(settings.digest ? { digest: settings.digest } : {}),
    threads: globalThis.crossOriginIsolated ? Math.min(4, navigator.hardwareConcurrency || 1) : 1,
    onProgress: ({ stage, loaded, total }) => {
      byId("stage").textContent = stage === "download" ? "Downloading the model" : "Opening the model";
      if (total) byId("progress").value = loaded / total;
    },
  });
  const { generation, special } = lm.info;
  for (const [theirs, ours] of Object.entries(DEFAULTS)) if (typeof generation[theirs] === "number") form.elements[ours].value = generation[theirs];
  byId("loading").hidden = true;
  if (!special) throw new Error("This model has no tokenizer: it takes and gives numbers only.");
  byId("modes").hidden = false;
  if (generation.chat_template) document.querySelector("[name=mode][value=chat]").checked = true;
  changeMode();
  facts();
  prompt.focus();
} catch (error) {
  fail(error);
}
