/* The list of conversations: newest first, searched by name and text, deleted ones apart until they are restored. */

const list = { trash: false, drawn: 0, opened: 0 };

/* All is read before anything changes, so that what is typed meanwhile stays where it was typed. */
async function openChat(id) {
  const turn = ++list.opened, chat = (id && await store.get("chats", id)) || null;
  const all = new Map((chat ? await store.messagesOf(chat.id) : []).map(m => [m.id, m]));
  const draft = await draftOf(chat ? chat.id : "new"), r = chat && running.get(chat.id);
  if (turn !== list.opened) return;              /* a later call is under way */
  if (r) all.set(r.m.id, r.m);
  Object.assign(talk, { chat: r ? r.chat : chat, all });
  session.set("open", chat ? chat.id : "");
  openComposer(chat ? chat.id : "new", draft);
  redraw();
  goDown();
  openSide(false);
  await drawList();
}

async function beginChat(name) {
  const chat = { id: newId(), name, created: Date.now(), changed: Date.now(), leaf: null };
  await keepChat(chat);
  talk.chat = chat;
  talk.all = new Map();
  composer.chat = chat.id;
  session.set("open", chat.id);
  await drawList();
  return chat;
}

/* Where the words were found: a piece of the text around them. */
function foundIn(text, words) {
  const i = text.toLowerCase().indexOf(words);
  const piece = text.slice(Math.max(0, i - 30), i + words.length + 40).replace(/\s+/g, " ");
  return i < 0 ? "" : (i > 30 ? "..." : "") + piece;
}

async function chatsFound(words) {
  const chats = (await store.all("chats")).filter(c => Boolean(c.deleted) === list.trash)
    .sort((a, b) => b.changed - a.changed);
  if (!words) return chats.map(c => [c, ""]);
  const texts = new Map();
  for (const m of await store.all("messages")) {
    const piece = texts.has(m.chat) ? "" : foundIn(m.content, words);
    if (piece) texts.set(m.chat, piece);
  }
  return chats.filter(c => c.name.toLowerCase().includes(words) || texts.has(c.id))
    .map(c => [c, texts.get(c.id) || ""]);
}

function chatItem(chat, piece) {
  const li = element("li"), open = button("", () => list.trash ? restore(chat) : openChat(chat.id), "open");
  open.append(element("span", "name", chat.name));
  if (piece) open.append(element("span", "soft piece", piece));
  if (talk.chat && talk.chat.id === chat.id) open.setAttribute("aria-current", "page");
  li.append(open);
  if (list.trash) {
    open.title = "Restore";
    const gone = button("Delete for good", () => forget(chat), "quiet");
    li.append(button("Restore", () => restore(chat), "quiet"), gone);
    gone.setAttribute("aria-label", "Delete for good: " + chat.name);
  } else {
    const more = button("\u22ef", e => openMenu(e.currentTarget, chat), "quiet more");
    more.setAttribute("aria-label", "More about " + chat.name);
    li.append(more);
  }
  return li;
}

async function drawList() {
  const turn = ++list.drawn, words = at("search").value.trim().toLowerCase(), found = await chatsFound(words);
  const deleted = (await store.all("chats")).filter(c => c.deleted).length;
  if (turn !== list.drawn) return;               /* a later call is under way */
  at("list").replaceChildren(...found.map(([c, piece]) => chatItem(c, piece)));
  at("list-note").textContent = found.length ? (list.trash ? "Kept for 30 days." : "") :
    words ? "Nothing found" : list.trash ? "Nothing was deleted" : "No conversations yet";
  at("trash").textContent = list.trash ? "Back to all" : deleted ? `Deleted (${deleted})` : "Deleted";
  at("trash").setAttribute("aria-pressed", String(list.trash));
}

/* Changes a conversation's record as it is now: lists and menus may show an older one. */
async function changeChat(id, change) {
  const r = running.get(id), open = talk.chat && talk.chat.id === id;
  const chat = r ? r.chat : open ? talk.chat : await store.get("chats", id);
  if (chat) await keepChat(Object.assign(chat, change));
}

async function restore(chat) {
  await changeChat(chat.id, { deleted: 0 });
  list.trash = false;
  await openChat(chat.id);
}

async function remove(chat) {
  const r = running.get(chat.id);
  if (r) r.controller.abort();
  await changeChat(chat.id, { deleted: Date.now() });
  if (talk.chat && talk.chat.id === chat.id) await openChat(null);
  await drawList();
  note(`Deleted: ${chat.name}`, "Undo", () => restore(chat));
}

/* The only deletion without a way back, so it is asked for. */
async function forget(chat) {
  if (!await askUser("Delete for good?", `${chat.name} cannot be restored after this.`, "Delete for good")) return;
  await store.forget(chat.id);
  await drawList();
}

async function rename(chat) {
  const name = await askUser("Rename the conversation", "", "Rename", chat.name);
  if (!name) return;
  await changeChat(chat.id, { name: name.slice(0, 200) });
  if (talk.chat && talk.chat.id === chat.id) redraw();
  await drawList();
}

function openMenu(b, chat) {
  const menu = at("menu"), box = b.getBoundingClientRect();
  menu.chat = chat;
  menu.showPopover();
  menu.style.left = Math.max(8, Math.min(box.left, innerWidth - menu.offsetWidth - 8)) + "px";
  menu.style.top = Math.max(8, Math.min(box.bottom + 4, innerHeight - menu.offsetHeight - 8)) + "px";
  menu.querySelector("button").focus();
}

function fromMenu(what, chat) {
  at("menu").hidePopover();
  if (what === "rename") rename(chat);
  else if (what === "delete") remove(chat);
  else if (what === "json") exportJson([chat], chat.name);
  else exportMarkdown(chat);
}

function openSide(open) {
  const narrow = getComputedStyle(at("side-close")).display !== "none";
  const was = document.body.classList.contains("with-side");
  document.body.classList.toggle("with-side", open);
  at("side-open").setAttribute("aria-expanded", String(open));
  at("shade").hidden = !open;
  if (open) at("search").focus();
  else if (was && narrow) at("side-open").focus();
}
