/* The conversation on the page. */

const running = new Map();          /* of a conversation: the answer under way, { chat, m, ... } (answer.js) */
const elsewhere = new Map();        /* of a message that another tab is writing: when it was last heard of */
const HEARD = 4000;

const displayNow = () => ({ plain: !md || !at("markdown").checked, marked: at("colours").checked });

/* Every pass brings the guesses that were accepted and one token more. */
function acceptLength(f) { return f.predicted_n ? f.predicted_n / Math.max(1, f.predicted_n - f.draft_n_accepted) : 0; }

function drawFigures(f) {
  const e = element("span", "figures");
  if (!f || !Number.isFinite(f.predicted_n)) return e;
  const add = (text, title) => {
    const s = element("span", "", text);
    s.title = title;
    e.append(e.childNodes.length ? " \u00b7 " : "", s);
  };
  add(`${f.predicted_n} tokens`,
      `and ${(f.prompt_n || 0) + (f.cache_n || 0)} of the prompt, ${f.cache_n || 0} of them cached`);
  add(`${(f.predicted_per_second || 0).toFixed(1)} tokens/s`, "speed of this answer");
  if (f.step_n) {
    add(`${f.block_n} ${f.block_n === 1 ? "block" : "blocks"}`, "blocks that were denoised");
    add(`${f.step_n} steps`, "passes of the model in which they cleared up");
    add(`${(f.predicted_per_step || 0).toFixed(2)} per step`, "tokens that one step brings on average");
  }
  if (f.draft_n_accepted) {
    add(`${acceptLength(f).toFixed(2)} per pass`, "accept length: tokens that one pass of the model brings on average");
    add(`${Math.round(100 * f.draft_n_accepted / f.predicted_n)} % drafted`,
        "guessed by the drafter and accepted by the model");
  }
  return e;
}

function isRunning(m) { const r = m && running.get(m.chat); return Boolean(r && r.m.id === m.id); }
function isElsewhere(m) { return m.finish === "" && elsewhere.get(m.id) > Date.now() - HEARD; }
/* The conversation cannot be changed while its answer is written, here or in another tab. */
function isBusy() {
  const leaf = currentLeaf();
  if (talk.chat && running.has(talk.chat.id)) return true;
  return Boolean(leaf && leaf.role === "assistant" && isElsewhere(leaf));
}
function whenFree(act) {
  return e => {
    if (isBusy()) note("An answer is being written: wait for its end or stop it");
    else act(e);
  };
}

function drawBranches(m) {
  const all = siblings(m.parent), i = all.indexOf(m), e = element("span", "branches");
  if (all.length < 2) return e;
  const go = (to, text, name) => {
    const b = button(text, whenFree(() => {
      talk.chat.leaf = newestLeaf(all[to].id);
      redraw();
      keepChat(talk.chat);
      const buttons = [...articleOf(all[to]).querySelectorAll(".branches button:not(:disabled)")];
      (buttons.find(o => o.getAttribute("aria-label") === name) || buttons[0]).focus();
    }), "quiet");
    b.setAttribute("aria-label", name);
    b.disabled = to < 0 || to >= all.length;
    return b;
  };
  e.append(go(i - 1, "\u2039", "Previous version"), element("span", "", `${i + 1}/${all.length}`),
           go(i + 1, "\u203a", "Next version"));
  return e;
}

function drawTools(m) {
  const tools = element("div", "tools"), add = (text, act) => tools.append(button(text, act, "quiet"));
  tools.append(drawBranches(m));
  if (isRunning(m) || m.finish === "" && isElsewhere(m)) return tools;
  add("Copy", e => copyFrom(e.target, m.content));
  add("Edit", whenFree(() => edit(m)));
  if (m.role === "assistant") {
    add("Regenerate", whenFree(() => regenerate(m)));
    if (["length", "stopped", "error", ""].includes(m.finish) && m.content && !schemaNow().schema)
      add("Continue", whenFree(() => answer(talk.chat, pathTo(m.id), { goOn: m })));
    tools.append(drawFigures(m.figures));
  } else if (currentLeaf() === m) {
    add("Answer", whenFree(() => answer(talk.chat, pathTo(m.id))));
  }
  return tools;
}

const ENDS = { length: "Stopped at the token limit", stopped: "Stopped",
               "": "Interrupted: the page was left while this was written" };

function drawEnd(m) {
  if (isRunning(m) || m.role === "user") return "";
  if (isElsewhere(m)) return element("p", "end soft", "Another tab is writing this");
  if (m.error) return element("p", "end wrong", m.error);
  return m.finish in ENDS ? element("p", "end soft", ENDS[m.finish]) : "";
}

function drawThought(m) {
  const d = element("details", "thought");
  d.append(element("summary", "", "Thinking"), element("div"));
  d.hidden = !m.thought;
  return d;
}

/* What a model that denoises would write if the last step were its last: not for screen readers, as it changes with
   every step. */
function drawDraft() {
  const d = element("div", "draft");
  d.setAttribute("aria-hidden", "true");
  d.hidden = true;
  return d;
}

function drawFilesOf(m) {
  return m.files.map(f => {
    const d = element("details", "file");
    d.append(element("summary", "", f.name), element("pre", "", f.text));
    return d;
  });
}

function drawMessage(m) {
  const a = element("article", m.role), body = element("div", "body");
  a.dataset.id = m.id;
  a.setAttribute("aria-label", m.role === "user" ? "You" : "Model");
  if (m.role === "assistant") a.append(drawThought(m), body, drawDraft());
  else a.append(...drawFilesOf(m), body);
  a.append(drawEnd(m), drawTools(m));
  fillMessage(a, m);
  return a;
}

function fillMessage(a, m) {
  const body = a.querySelector(".body"), how = { ...displayNow(), final: m.finish !== "" };
  if (m.role === "user") {
    show(body, m.content, [], { plain: true });
    return;
  }
  const thought = a.querySelector(".thought");
  if (m.thought) {
    thought.hidden = false;
    if (isRunning(m)) thought.open = !m.content;
    show(thought.lastElementChild, m.thought, m.thoughtRuns, how);
  }
  show(body, m.content, m.runs, how);
  const draft = isRunning(m) ? running.get(m.chat).draft : "", box = a.querySelector(".draft");
  box.hidden = !draft;
  box.textContent = draft;
  a.classList.toggle("waiting", isRunning(m) && !m.content && !m.thought && !draft);
}

function articleOf(m) { return at("talk").querySelector(`article[data-id="${m.id}"]`); }

function drawAgain(m) {
  const old = articleOf(m);
  if (old) old.replaceWith(drawMessage(m));
}

/* All of the open conversation. */
function redraw() {
  const path = currentPath(), box = at("talk"), low = isLow();
  box.replaceChildren(...path.map(drawMessage));
  if (!path.length) box.append(drawWelcome());
  at("title").textContent = talk.chat ? talk.chat.name : "New conversation";
  document.title = talk.chat ? talk.chat.name + " \u2013 ratoon" : "ratoon";
  at("chat-menu").hidden = !talk.chat;
  if (low) goDown();
  drawState();
}

function drawWelcome() {
  const e = element("div", "welcome soft");
  e.append(element("p", "big", "What would you like to know?"),
           element("p", "", "Conversations stay in this browser. The model runs on the server that sent this page."));
  return e;
}

function isLow() { const t = at("talk"); return t.scrollHeight - t.scrollTop - t.clientHeight < 80; }
function goDown() { at("talk").scrollTop = at("talk").scrollHeight; }
/* The newest text stays in view when a keyboard opens or the window changes. Until the observer has seen a new size,
   the place in the text says nothing of whether someone has scrolled away. */
let sizeSeen = "";
function sizeNow() { return `${at("talk").clientWidth} ${at("talk").clientHeight}`; }
function drawDown() { if (sizeNow() === sizeSeen) at("down").hidden = isLow(); }
new ResizeObserver(() => {
  if (at("down").hidden) goDown();
  sizeSeen = sizeNow();
  drawDown();
}).observe(at("talk"));

/* The line under the field and its buttons. */
function drawState() {
  const r = talk.chat && running.get(talk.chat.id), m = r ? r.m : currentLeaf(), f = m && m.figures;
  const p = r && r.progress;
  const used = f ? (f.prompt_n || 0) + (f.cache_n || 0) + (f.predicted_n || 0) : 0, parts = [];
  if (p && p.processed < p.total - 1) parts.push(`reading ${p.processed} of ${p.total} tokens`);
  else if (r && f) parts.push(`${f.predicted_per_second.toFixed(1)} tokens/s`);
  if (used && server.ctx) parts.push(`${used.toLocaleString("en")} / ${server.ctx.toLocaleString("en")}`);
  at("state").textContent = parts.join(" \u00b7 ");
  at("send").hidden = Boolean(r);
  at("stop").hidden = !r;
  at("send").disabled = !server.chat;
  document.body.dataset.busy = composer.sending || isBusy() ? "yes" : "no";
  drawDown();
}

/* ---- editing: a branch beside the message, which stays ---- */

function edit(m) {
  const a = articleOf(m), field = element("textarea"), row = element("div", "tools"), hint = element("span", "soft");
  const back = () => { drawAgain(m); const b = articleOf(m).querySelectorAll(".tools > button")[1]; if (b) b.focus(); };
  const save = whenFree(() => { if (field.value.trim() || m.files.length) saveEdit(m, field.value); else empty(); });
  const yes = button(m.role === "user" ? "Send" : "Save", save, "main");
  const empty = () => {
    yes.disabled = !field.value.trim() && !m.files.length;
    hint.textContent = yes.disabled ? "An empty message cannot be sent" : "The version before stays as a branch";
  };
  field.value = m.content;
  field.setAttribute("aria-label", "Edit the message");
  field.addEventListener("input", () => { growField(field); empty(); });
  field.addEventListener("keydown", e => {
    if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) save();
    if (e.key === "Escape") { e.stopPropagation(); back(); }
  });
  row.append(yes, button("Cancel", back), hint);
  a.replaceChildren(field, row);
  empty();
  growField(field);
  field.focus();
}

async function saveEdit(m, text) {
  const n = { ...newMessage(m.role, m.chat, m.parent, text), files: m.files };
  if (m.role === "assistant") n.finish = "edited";
  talk.all.set(n.id, n);
  talk.chat.leaf = n.id;
  redraw();
  await keepMessage(n);
  await keepChat(talk.chat);
  if (m.role === "user") answer(talk.chat, pathTo(n.id), { back: m });
  else articleOf(n).querySelector(".tools > button").focus();
}

function regenerate(m) {
  if (alwaysTheSame()) note("With this seed or temperature 0 the model writes the same text again");
  answer(talk.chat, pathTo(m.parent), { back: m });
}
