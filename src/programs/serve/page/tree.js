/* The conversation that is open: its messages are a tree, since editing and regenerating begin a branch. What is shown
   is the path from a first message to the leaf. */

const talk = { chat: null, all: new Map() };

function newMessage(role, chat, parent, content) {
  const m = { id: newId(), chat, parent, role, content, files: [], time: Date.now() };
  if (role === "user") return m;
  return { ...m, thought: "", runs: [], thoughtRuns: [], figures: null, model: "", finish: "", error: "" };
}

const inOrder = (a, b) => a.time - b.time || (a.id < b.id ? -1 : 1);

/* Messages with the same parent, oldest first. */
function siblings(parent) { return [...talk.all.values()].filter(m => m.parent === parent).sort(inOrder); }

/* From the first message to this one. A parent that is missing, or a circle in an imported file, ends it. */
function pathTo(id, all = talk.all) {
  const path = [], seen = new Set();
  for (let m = all.get(id); m && !seen.has(m.id); m = all.get(m.parent)) {
    seen.add(m.id);
    path.unshift(m);
  }
  return path;
}

/* The newest end of the branch that begins with this message. */
function newestLeaf(id) {
  const seen = new Set();
  for (let next = siblings(id); next.length && !seen.has(id); next = siblings(id)) {
    seen.add(id);
    id = next[next.length - 1].id;
  }
  return id;
}

/* The message shown last; the newest one while the record names one that is not here (yet). */
function currentLeaf() {
  if (!talk.chat) return null;
  return talk.all.get(talk.chat.leaf) || [...talk.all.values()].sort(inOrder).pop() || null;
}

function currentPath() {
  const leaf = currentLeaf();
  return leaf ? pathTo(leaf.id) : [];
}

function fileText(f) {
  const fence = "`".repeat(Math.max(3, ...Array.from(f.text.matchAll(/`+/g), m => m[0].length + 1)));
  return `${f.name}:\n${fence}\n${f.text}${f.text.endsWith("\n") ? "" : "\n"}${fence}\n\n`;
}

function fullText(m) { return (m.files || []).map(fileText).join("") + m.content; }

/* What the model is told: the path without the turns that brought no answer. */
function messagesFor(path) {
  const told = [];
  path.forEach((m, i) => {
    const answer = path[i + 1];
    if (m.role === "user" && (!answer || (answer.role === "assistant" && answer.content)))
      told.push({ role: "user", content: fullText(m) });
    else if (m.role === "assistant" && m.content) told.push({ role: "assistant", content: m.content });
  });
  return told;
}

function nameFrom(text) {
  const line = (text.trim().split("\n").find(l => l.trim()) || "").trim().replace(/\s+/g, " ");
  return line.length > 60 ? line.slice(0, 57).replace(/[\ud800-\udbff]$/, "") + "..." : line || "New conversation";
}
