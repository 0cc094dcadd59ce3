/* Hands, other tabs, and the beginning. */

const PHONE = matchMedia("(pointer: coarse)");

/* What was chosen; the same file can be chosen again. */
function takeFiles(input) {
  const files = [...input.files];
  input.value = "";
  return files;
}

function lastQuestion() { return currentPath().filter(m => m.role === "user").pop(); }

at("ask").addEventListener("submit", e => { e.preventDefault(); send(); });
at("say").addEventListener("input", changedComposer);
at("say").addEventListener("keydown", e => {
  if (e.isComposing) return;
  if (e.key === "Enter" && !e.shiftKey && !PHONE.matches) {
    e.preventDefault();
    send();
  }
  if (e.key === "ArrowUp" && !at("say").value && lastQuestion()) {
    e.preventDefault();
    whenFree(() => edit(lastQuestion()))();
  }
});
at("say").addEventListener("paste", e => {
  if (!e.clipboardData.files.length || e.clipboardData.getData("text/plain")) return;
  e.preventDefault();
  attach(e.clipboardData.files);
});
document.addEventListener("keydown", e => {
  if (e.key !== "Escape" || document.querySelector("dialog[open]") || e.defaultPrevented) return;
  if (document.body.classList.contains("with-side")) openSide(false);
  else stop();
});
document.addEventListener("dragover", e => e.preventDefault());
document.addEventListener("drop", e => { e.preventDefault(); attach(e.dataTransfer.files); });

at("stop").addEventListener("click", stop);
at("attach").addEventListener("click", () => at("attach-files").click());
at("attach-files").addEventListener("change", e => attach(takeFiles(e.target)));
at("marks").addEventListener("click", () => { at("colours").checked = !at("colours").checked; changedSettings(); });
at("down").addEventListener("click", () => { goDown(); at("say").focus(); });
at("talk").addEventListener("scroll", drawDown, { passive: true });
at("trouble-close").addEventListener("click", () => { trouble(""); at("say").focus(); });

at("new").addEventListener("click", async () => { list.trash = false; await openChat(null); at("say").focus(); });
at("search").addEventListener("input", () => listCalmly());
at("trash").addEventListener("click", () => { list.trash = !list.trash; drawList(); });
at("import").addEventListener("click", () => at("import-files").click());
at("import-files").addEventListener("change", e => importFiles(takeFiles(e.target)));
at("export-all").addEventListener("click", async () =>
  exportJson((await store.all("chats")).filter(c => !c.deleted), "ratoon conversations"));
at("side-open").addEventListener("click", () => openSide(true));
at("side-close").addEventListener("click", () => openSide(false));
at("shade").addEventListener("click", () => openSide(false));
at("chat-menu").addEventListener("click", e => openMenu(e.currentTarget, talk.chat));
for (const b of at("menu").children) b.addEventListener("click", () => fromMenu(b.dataset.do, at("menu").chat));

at("settings-open").addEventListener("click", () => openSettings(at("settings").hidden));
at("settings-close").addEventListener("click", () => openSettings(false));
at("settings-reset").addEventListener("click", resetSettings);
at("settings-form").addEventListener("submit", e => e.preventDefault());
at("settings-form").addEventListener("change", e => {
  changedSettings();
  if (e.target.id === "key") meet();
});
at("about-open").addEventListener("click", openAbout);
at("about-close").addEventListener("click", () => at("about").close());

function openAbout() {
  const p = server.props, facts = p ? [["Model", server.name], ["File", p.model_path], ["Architecture", p.model.arch],
    ["Drafter", p.model.draft_path || "none"], ["Speculation", p.speculative_mode], ["Context", `${server.ctx} tokens`],
    ["Keys and values", p.runtime.kv_cache], ["Version", p.server.version]] : [["Model", GONE]];
  at("facts").replaceChildren(...facts.flatMap(([k, v]) => [element("dt", "", k), element("dd", "", String(v))]));
  at("about-markdown").textContent = md
    ? "Markdown is read by markdown-it (MIT licence; its text is in this page's source)."
    : "This page was built without markdown-it: answers are shown as plain text.";
  at("about").showModal();
}

/* ---- other tabs ---- */

tabs.onmessage = ({ data }) => {
  const here = id => talk.chat && talk.chat.id === id;
  if (data.message && here(data.message.chat)) heardOfMessage(data.message);
  if (data.gone && here(data.gone.chat)) {
    talk.all.delete(data.gone.id);
    redrawCalmly();
  }
  if (data.chat) {
    if (here(data.chat.id)) heardOfChat(data.chat);
    listCalmly();
  }
};

/* An unfinished answer is being written in another tab as long as that is heard of. */
function heardOfMessage(m) {
  const a = articleOf(m), live = m.role === "assistant" && m.finish === "", grows = live && isElsewhere(m);
  talk.all.set(m.id, m);
  if (live) {
    elsewhere.set(m.id, Date.now());
    setTimeout(() => heardEnough(m.id), HEARD + 100);
  }
  if (!a) redrawCalmly();
  else if (grows) fillMessage(a, m);
  else drawAgain(m);
  drawState();
}

function heardEnough(id) {
  const m = talk.all.get(id);
  if (!m || m.finish !== "" || isElsewhere(m)) return;
  drawAgain(m);
  drawState();
}

const listCalmly = calmly(200, drawList);
/* An open field of an edit stays open. */
const redrawCalmly = calmly(50, () => { if (!at("talk").querySelector("article > textarea")) redraw(); });

function heardOfChat(chat) {
  if (chat.deleted) return void openChat(null);
  talk.chat.name = chat.name;
  if (!running.has(chat.id)) talk.chat.leaf = chat.leaf;
  redrawCalmly();
}

window.addEventListener("storage", e => {
  if (e.key === "ratoon.settings" && e.newValue) {
    useSettings(JSON.parse(e.newValue));
    redraw();
  }
});

/* What is not written yet when the page goes: begun here, and the browser completes it. */
window.addEventListener("pagehide", () => {
  for (const r of running.values()) store.put("messages", r.m);
  keepDraft(composer.chat, at("say").value, composer.files);
});

/* The one conversation that earlier versions of this page kept. */
async function takeOldTalk() {
  const old = localStorage.getItem("ratoon.talk");
  if (!old) return;
  const messages = JSON.parse(old);
  if (messages.length) {
    const read = readChat({ messages, name: nameFrom(messages[0].content) }, "Earlier conversation");
    for (const m of read.messages) await store.put("messages", m);
    await keepChat(read.chat);
  }
  localStorage.removeItem("ratoon.talk");
}

async function begin() {
  recallSettings();
  await store.open();
  await takeOldTalk().catch(e => note("The earlier conversation could not be read: " + e.message));
  await tidyStore();
  await openChat(session.get("open"));
  document.body.dataset.ready = "yes";
  if (!PHONE.matches) at("say").focus();
  meet();
}
begin();
