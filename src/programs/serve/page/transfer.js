/* Conversations as files: JSON with all branches, Markdown with the branch that is shown; and back. */

const FILE_KIND = "ratoon.conversations";
const ROLES = ["user", "assistant"];
const turnMark = role => `<!-- ratoon: ${role} -->`;

function fileName(name, ending) {
  return (name.replace(/[^\p{L}\p{N} ._-]+/gu, " ").trim().slice(0, 60) || "conversation") + ending;
}

async function exportJson(chats, name) {
  const out = [];
  for (const c of chats) out.push({ ...c, messages: (await store.messagesOf(c.id)).sort(inOrder) });
  saveFile(fileName(name, ".json"), "application/json",
           JSON.stringify({ kind: FILE_KIND, version: 1, chats: out }, null, 1) + "\n");
}

/* A line of a message that looks like a turn's mark gets a backslash in front. */
function markdownOf(name, path) {
  const turn = m => `${turnMark(m.role)}\n\n**${m.role === "user" ? "You" : "Model"}**\n\n`
    + fullText(m).replace(/^(\\*<!-{2} ratoon: )/gm, "\\$1") + "\n";
  return `# ${name}\n\n${path.map(turn).join("\n")}`;
}

async function exportMarkdown(chat) {
  const all = new Map((await store.messagesOf(chat.id)).map(m => [m.id, m]));
  saveFile(fileName(chat.name, ".md"), "text/markdown", markdownOf(chat.name, pathTo(chat.leaf, all)));
}

function readMarkdown(text, fallback) {
  const parts = text.replace(/\r\n/g, "\n").split(/^<!-{2} ratoon: (user|assistant) -{2}>$/m), messages = [];
  if (parts.length < 3) throw new Error("it has no turns as this page writes them");
  for (let i = 1; i < parts.length; i += 2)
    messages.push({ role: parts[i], content: parts[i + 1].replace(/^\s*\*\*(?:You|Model)\*\*\n\n/, "")
      .replace(/^\\(\\*<!-{2} ratoon: )/gm, "$1").replace(/\n{1,2}$/, "") });
  return [{ name: (/^# (.*)$/m.exec(parts[0]) || [0, fallback])[1], messages }];
}

function readJson(text) {
  const j = JSON.parse(text);
  if (j && j.kind === FILE_KIND && Array.isArray(j.chats)) return j.chats;
  if (j && Array.isArray(j.messages)) return [j];
  throw new Error(`it is neither ${FILE_KIND} nor a list of messages`);
}

const textOr = (x, other) => typeof x === "string" ? x : other;
const numberOr = (x, other) => Number.isFinite(x) ? x : other;
const isFile = f => f && typeof f.name === "string" && typeof f.text === "string";
const filesOf = x => Array.isArray(x) ? x.filter(isFile).map(f => ({ name: f.name, text: f.text })) : [];
const runsOf = x => Array.isArray(x) && x.length % 2 === 0 && x.every(Number.isInteger) ? x : [];

/* A message of a file with only what belongs into one. ids: of the file's ids, ours. */
function readMessage(j, i, chat, ids, before) {
  if (!j || !ROLES.includes(j.role))
    throw new Error(`messages[${i}].role: ${JSON.stringify(j && j.role)}, expected user or assistant`);
  if (typeof j.content !== "string") throw new Error(`messages[${i}].content is no text`);
  const parent = "parent" in j ? ids.get(j.parent) || null : before;
  const m = newMessage(j.role, chat, parent, j.content), timed = j.figures && typeof j.figures === "object";
  Object.assign(m, { id: ids.get(j.id) || m.id, time: numberOr(j.time, m.time + i), files: filesOf(j.files) });
  if (j.role === "user") return m;
  return Object.assign(m, { thought: textOr(j.thought, ""), model: textOr(j.model, ""), error: textOr(j.error, ""),
                            finish: textOr(j.finish, "") || "stop", runs: runsOf(j.runs),
                            thoughtRuns: runsOf(j.thoughtRuns),
                            figures: timed && Object.values(j.figures).every(Number.isFinite) ? j.figures : null });
}

/* A conversation of a file under new ids: an import never replaces anything. */
function readChat(j, fallback) {
  if (!j || !Array.isArray(j.messages)) throw new Error("a conversation has no messages");
  const chat = { id: newId(), name: textOr(j.name, "").slice(0, 200) || fallback,
                 created: numberOr(j.created, Date.now()), changed: Date.now(), leaf: null };
  const ids = new Map(j.messages.filter(m => m && m.id).map(m => [m.id, newId()])), messages = [];
  j.messages.filter(m => !m || m.role !== "system").forEach((m, i) =>
    messages.push(readMessage(m, i, chat.id, ids, messages.length ? messages[messages.length - 1].id : null)));
  chat.leaf = ids.get(j.leaf) || (messages.length ? messages[messages.length - 1].id : null);
  return { chat, messages };
}

async function importFiles(files) {
  let last = null;
  for (const file of files) {
    try {
      const text = await file.text(), fallback = file.name.replace(/\.\w+$/, "");
      const read = (/\.json$/i.test(file.name) || /^\s*\{/.test(text) ? readJson(text) : readMarkdown(text, fallback))
        .map(j => readChat(j, fallback));
      for (const { chat, messages } of read) {
        for (const m of messages) await store.put("messages", m);
        await keepChat(chat);
        last = chat;
      }
      note(`${file.name}: ${read.length} ${read.length === 1 ? "conversation" : "conversations"} imported`);
    } catch (e) {
      trouble(`${file.name} cannot be imported: ${e.message}`);
    }
  }
  if (last) await openChat(last.id);
  await drawList();
}
