/* Answers: asked for, shown as they come, kept as they come. */

const KEEP_EVERY = 300;
const SHARE = 4;                    /* of the time at most a fifth goes into drawing */

function drawLive(r) {
  if (!talk.chat || talk.chat.id !== r.chat.id) return;
  const a = articleOf(r.m), low = isLow(), begin = performance.now();
  if (a) fillMessage(a, r.m);
  if (low) goDown();
  drawState();
  r.cost = performance.now() - begin;
}

function drawSoon(r) {
  if (r.due) return;
  r.due = setTimeout(() => requestAnimationFrame(() => { r.due = 0; if (!r.over) drawLive(r); }), SHARE * r.cost);
}

/* One write at a time; what came meanwhile goes into the next one. Keeps other tabs informed while nothing comes. */
async function keepRunning(r) {
  while (!r.over) {
    await keepMessage(r.m);
    await new Promise(done => setTimeout(done, KEEP_EVERY));
  }
}

/* The answer to a path. goOn: the message to continue, the last of the path. fresh: the question was just typed, so it
   goes back into the field if nothing comes of it. back: what to show then. */
async function answer(chat, path, { goOn = null, fresh = null, back = null } = {}) {
  if (running.has(chat.id)) return;
  const parent = path.length ? path[path.length - 1].id : null;
  const before = goOn && { finish: goOn.finish, length: goOn.content.length };
  const m = goOn || newMessage("assistant", chat.id, parent, "");
  const r = { chat, m, controller: new AbortController(), cost: 0, due: 0, over: false, progress: null, draft: "" };
  let asked;
  try {
    asked = JSON.stringify(requestBody(path, Boolean(goOn)));
  } catch (e) {
    if (goOn) trouble(e.message);
    else await noAnswer(r, e, { fresh, back });
    document.body.dataset.ended = Number(document.body.dataset.ended || 0) + 1;
    return;
  }
  Object.assign(m, { finish: "", error: "", model: server.name });
  running.set(chat.id, r);
  talk.all.set(m.id, m);
  chat.leaf = m.id;
  redraw();
  goDown();
  await keepMessage(m);
  await keepChat(chat);
  announce("The model is answering");
  keepRunning(r);
  const wrong = await stream(r, asked).then(() => null, e => e);
  clearTimeout(r.due);
  r.over = true;
  running.delete(chat.id);
  if (wrong && goOn && m.content.length === before.length) Object.assign(m, { finish: before.finish || "stopped" });
  if (wrong && !m.content && !m.thought) await noAnswer(r, wrong, { fresh, back });
  else await answered(r, wrong);
  document.body.dataset.ended = Number(document.body.dataset.ended || 0) + 1;     /* for scripts that drive the page */
}

async function stream(r, asked) {
  const how = { method: "POST", headers: { "Content-Type": "application/json", ...headers() }, body: asked };
  const reply = await fetchHere("v1/chat/completions", { ...how, signal: r.controller.signal });
  if (!reply.ok) throw await failure(reply);
  try {
    await events(reply.body, data => { r.progress = takeChunk(r, data); drawSoon(r); });
  } catch (e) {
    r.controller.abort();
    throw e instanceof TypeError ? lost() : e;
  }
  if (!r.m.finish) throw lost();
}

function lost() { return Object.assign(new Error("The connection to the server was lost"), { gone: true }); }

async function answered(r, wrong) {
  const m = r.m, stopped = wrong && wrong.name === "AbortError";
  if (stopped) m.finish = "stopped";
  else if (wrong) Object.assign(m, { finish: "error", error: wrong.message });
  r.chat.changed = Date.now();
  await keepMessage(m);
  await keepChat(r.chat);
  if (talk.chat && talk.chat.id === r.chat.id) {
    const low = isLow();
    drawAgain(m);
    if (low) goDown();
    drawState();
    const text = articleOf(m) ? articleOf(m).querySelector(".body").innerText : "";
    announce(stopped ? "Stopped" : wrong ? wrong.message : "The model says: " + text);
  } else if (!stopped) {
    note(`Answered: ${r.chat.name}`, "Open", () => openChat(r.chat.id));
  }
  if (wrong && wrong.gone) meet();
  drawList();
}

/* Nothing came: no trace of the try stays in the conversation. */
async function noAnswer(r, wrong, { fresh, back }) {
  for (const m of fresh ? [r.m, fresh] : [r.m]) {
    talk.all.delete(m.id);
    await dropMessage(m);
  }
  r.chat.leaf = fresh ? fresh.parent : back ? newestLeaf(back.id) : r.m.parent;
  await keepChat(r.chat);
  if (fresh) await giveBack(r.chat.id, fresh);
  if (talk.chat && talk.chat.id === r.chat.id) redraw();
  if (wrong.name === "AbortError") note(fresh ? "Stopped; your message is in the field again" : "Stopped");
  else trouble(wrong.message + (fresh ? ". Your message is in the field again." : ""));
  if (wrong.gone) meet();
  drawList();
}

/* The draft goes when the message is on record. */
async function send() {
  const text = at("say").value, files = composer.files, draft = composer.chat;
  if (composer.sending || isBusy() || !server.chat || (!text.trim() && !files.length)) return;
  composer.sending = true;
  setComposer("", []);
  drawState();
  trouble("");
  const chat = talk.chat || await beginChat(nameFrom(text || files[0].name)), path = currentPath();
  const m = { ...newMessage("user", chat.id, path.length ? path[path.length - 1].id : null, text), files };
  talk.all.set(m.id, m);
  await keepMessage(m);
  await keepDraft(draft, "", []);
  composer.sending = false;
  await answer(chat, [...path, m], { fresh: m });
}

function stop() {
  const r = talk.chat && running.get(talk.chat.id);
  if (!r) return;
  r.controller.abort();
  if (!PHONE.matches) at("say").focus();         /* the button goes, the focus must not */
}
