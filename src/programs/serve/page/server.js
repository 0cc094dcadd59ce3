/* The server: what it can do, requests, streams. */

const base = location.pathname.replace(/\/?$/, "/");
const server = { up: false, ctx: 0, name: "", defaults: {}, props: null, chat: true };

function headers() { return at("key").value ? { "Authorization": "Bearer " + at("key").value } : {}; }

const GONE = "The server does not answer";

async function fetchHere(path, how) {
  try {
    return await fetch(base + path, how);
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw Object.assign(new Error(GONE), { gone: true });
  }
}

/* What went wrong, in words. Without a key its field appears. */
async function failure(r) {
  let text = `The server answers ${r.status} ${r.statusText}`;
  try { text = (await r.json()).error.message; } catch (e) { /* no JSON: the status has to do */ }
  if (r.status === 401) {
    at("key-row").hidden = false;
    openSettings(true);
    at("key").focus();
  }
  return new Error(text);
}

/* Offered is what the model's template and the server can do. */
function learn(p, models) {
  const caps = p.chat_template_caps || {}, model = (models.data || [])[0] || {}, can = model.capabilities || [];
  const fields = model.supported_parameters || [];
  Object.assign(server, { up: true, props: p, name: p.model_alias, defaults: p.default_generation_settings,
                          ctx: p.default_generation_settings.n_ctx, chat: can.includes("chat") });
  at("model").textContent = `${server.name} \u00b7 context ${server.ctx.toLocaleString("en")}`;
  at("thinking-row").hidden = !can.includes("reasoning");
  at("system-row").hidden = caps.system === false;
  at("schema-row").hidden = !fields.includes("response_format");
  at("marks").hidden = p.speculative_mode === "off";
  for (const id of NUMBERS) at(id).placeholder = id === "seed" ? "random" : String(server.defaults[id] ?? "to the end");
  drawState();
  trouble(server.chat ? "" : "This model has no chat template, so it cannot chat. It completes texts: "
                             + "POST /v1/completions.");
}

let meeting = 0;

/* Asks until the server is there. */
async function meet() {
  clearTimeout(meeting);
  try {
    const h = await fetchHere("health");
    if (h.status === 503) {
      at("model").textContent = `loading the model: ${Math.round(100 * ((await h.json()).progress || 0))} %`;
      meeting = setTimeout(meet, 500);
      return;
    }
    const [p, m] = await Promise.all(["props", "v1/models"].map(path => fetchHere(path, { headers: headers() })));
    if (!p.ok) throw await failure(p);
    learn(await p.json(), m.ok ? await m.json() : {});
  } catch (e) {
    server.up = false;
    trouble(e.gone ? GONE + ". Trying again ..." : e.message);
    if (e.gone) meeting = setTimeout(meet, 1500);
  }
}

function requestBody(path, goOn) {
  const messages = messagesFor(path), system = at("system").value;
  if (system.trim() && !at("system-row").hidden) messages.unshift({ role: "system", content: system });
  return { messages, stream: true, return_drafted: true, timings_per_token: true, return_progress: true, ...sampling(),
           ...(server.props && server.props.canvas ? { stream_options: { include_drafts: true } } : {}),
           ...(goOn ? { continue_final_message: true, add_generation_prompt: false } : {}) };
}

/* Server-sent events: calls take with every event's data. */
async function events(stream, take) {
  const reader = stream.getReader(), decoder = new TextDecoder();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    waiting += decoder.decode(value || new Uint8Array(), { stream: !done });
    const blocks = waiting.split(/\r?\n\r?\n/);
    waiting = blocks.pop();
    for (const b of blocks)
      for (const line of b.split(/\r?\n/)) if (line.startsWith("data:")) take(line.slice(5).trim());
    if (done) return;
  }
}

/* Adds a piece to runs: drafted are its bytes [from, to) that were guessed, in UTF-8; the page counts in UTF-16. */
function addRuns(runs, length, piece, drafted) {
  const bytes = new TextEncoder().encode(piece), decoder = new TextDecoder();
  const whole = i => { while (i < bytes.length && (bytes[i] & 0xc0) === 0x80) i++; return i; };   /* no half ones */
  const add = (n, how) => {
    if (n === 0) return;
    length += n;
    if (runs.length && runs[runs.length - 1] === how) runs[runs.length - 2] = length;
    else runs.push(length, how);
  };
  let done = 0;
  for (const [from, to] of drafted || []) {
    add(decoder.decode(bytes.subarray(done, whole(from))).length, 0);
    add(decoder.decode(bytes.subarray(whole(from), whole(to))).length, 1);
    done = whole(to);
  }
  add(decoder.decode(bytes.subarray(done)).length, 0);
}

/* One event of a stream, put into the answer's message. A draft is no part of it: what comes next replaces it. Returns
   the progress of the prompt, or null. */
function takeChunk(r, data) {
  const m = r.m;
  if (data === "[DONE]") return null;
  const c = JSON.parse(data), choice = c.choices && c.choices[0], d = (choice && choice.delta) || {};
  if (c.error) throw new Error(c.error.message);
  if (c.draft) r.draft = c.draft.text;
  else if (d.content || d.reasoning_content || (choice && choice.finish_reason)) r.draft = "";
  if (d.reasoning_content) {
    addRuns(m.thoughtRuns, m.thought.length, d.reasoning_content, choice.drafted);
    m.thought += d.reasoning_content;
  }
  if (d.content) {
    addRuns(m.runs, m.content.length, d.content, choice.drafted);
    m.content += d.content;
  }
  if (choice && choice.finish_reason) m.finish = choice.finish_reason;
  if (c.timings && c.timings.predicted_n) m.figures = c.timings;
  return c.prompt_progress || null;
}
