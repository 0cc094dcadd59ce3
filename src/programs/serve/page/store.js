/* What stays in this browser: conversations and each of their messages as a record of its own, so that two tabs never
   overwrite each other's messages. Where the browser keeps nothing, records live as long as the page.

   chat      id, name, created, changed, leaf (the message shown last), deleted (when)
   message   id, chat, parent (null: the first), role, content, files, time; of an answer also thought, runs and
             thoughtRuns (markdown.js, Source), figures, model, finish ("": not finished), error */

const TABLES = ["chats", "messages", "drafts"];
const KEPT_DELETED = 30 * 24 * 3600 * 1000;

function openDatabase() {
  return new Promise((done, failed) => {
    const r = indexedDB.open("ratoon", 1);
    r.onupgradeneeded = () => {
      for (const t of TABLES) r.result.createObjectStore(t, { keyPath: "id" });
      r.transaction.objectStore("messages").createIndex("chat", "chat");
    };
    r.onsuccess = () => {
      r.result.onversionchange = () => r.result.close();
      done(r.result);
    };
    r.onerror = () => failed(r.error);
    r.onblocked = () => failed(new Error("another tab holds it open"));
  });
}

const store = {
  db: null, memory: new Map(TABLES.map(t => [t, new Map()])),

  async open() {
    try {
      this.db = await openDatabase();
    } catch (e) {
      note("This browser keeps nothing: conversations are gone when the page is closed. Export what you need.",
           "Understood", () => {});
    }
  },
  /* One request in a transaction of its own; resolved when it is on record. */
  ask(table, mode, request) {
    return new Promise((done, failed) => {
      const t = this.db.transaction(table, mode), r = request(t.objectStore(table));
      t.oncomplete = () => done(r.result);
      t.onabort = () => failed(t.error || new Error("it was given up"));
    });
  },
  async put(table, record) {
    if (!this.db) return void this.memory.get(table).set(record.id, structuredClone(record));
    try {
      await this.ask(table, "readwrite", s => s.put(record));
    } catch (e) {
      trouble(`The browser could not keep the conversation (${e.message}). Export it, or make room.`);
    }
  },
  async get(table, id) {
    return this.db ? this.ask(table, "readonly", s => s.get(id)) : structuredClone(this.memory.get(table).get(id));
  },
  async remove(table, id) {
    if (this.db) await this.ask(table, "readwrite", s => s.delete(id));
    else this.memory.get(table).delete(id);
  },
  async all(table) {
    if (this.db) return this.ask(table, "readonly", s => s.getAll());
    return [...this.memory.get(table).values()].map(v => structuredClone(v));
  },
  async messagesOf(chat) {
    if (!this.db) return (await this.all("messages")).filter(m => m.chat === chat);
    return this.ask("messages", "readonly", s => s.index("chat").getAll(chat));
  },
  async forget(chat) {
    for (const m of await this.messagesOf(chat)) await this.remove("messages", m.id);
    await this.remove("drafts", chat);
    await this.remove("chats", chat);
  },
};

/* Other tabs of this page hear of every change: { chat } or { message }. */
const tabs = "BroadcastChannel" in window ? new BroadcastChannel("ratoon") : { postMessage() {} };

async function keepChat(chat) {
  await store.put("chats", chat);
  tabs.postMessage({ chat });
}

async function keepMessage(message) {
  await store.put("messages", message);
  tabs.postMessage({ message });
}

async function dropMessage(message) {
  await store.remove("messages", message.id);
  tabs.postMessage({ gone: message });
}

/* What was typed and not sent, by conversation. This tab's own comes first. */
async function keepDraft(chat, text, files) {
  session.set("draft." + chat, JSON.stringify({ text, files }));
  if (text || files.length) await store.put("drafts", { id: chat, text, files });
  else await store.remove("drafts", chat);
}

async function draftOf(chat) {
  const own = session.get("draft." + chat);
  return (own && JSON.parse(own)) || await store.get("drafts", chat) || { text: "", files: [] };
}

/* Conversations that were deleted long ago go for good. */
async function tidyStore() {
  for (const c of await store.all("chats"))
    if (c.deleted && c.deleted < Date.now() - KEPT_DELETED) await store.forget(c.id);
}
