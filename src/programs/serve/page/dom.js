/* Elements, notes and the clipboard. Text from outside only ever becomes text nodes. */

const at = id => document.getElementById(id);

function element(name, className, text) {
  const e = document.createElement(name);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

function button(text, act, className) {
  const b = element("button", className || "", text);
  b.type = "button";
  b.addEventListener("click", act);
  return b;
}

/* crypto.randomUUID is missing on pages that came over plain HTTP. */
function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), b => b.toString(16).padStart(2, "0")).join("");
}

/* Session storage, which a browser may forbid. */
const session = {
  get(name) { try { return sessionStorage.getItem("ratoon." + name); } catch (e) { return null; } },
  set(name, text) { try { sessionStorage.setItem("ratoon." + name, text); } catch (e) { /* then it is not kept */ } },
};

const NOTES = { time: 6000, most: 3 };

/* A note that goes by itself; with an action ("Undo") it stays until it is dismissed or newer ones take its place. */
function note(text, what, act) {
  const n = element("div", "note");
  n.append(element("span", "", text));
  const gone = () => n.remove();
  if (what) n.append(button(what, () => { gone(); act(); }));
  n.append(button("Dismiss", gone, "quiet"));
  at("notes").append(n);
  while (at("notes").children.length > NOTES.most) at("notes").firstChild.remove();
  if (!what) setTimeout(gone, NOTES.time);
}

/* The line above the conversation: what went wrong, until it is dismissed or over. */
function trouble(text) {
  at("trouble-text").textContent = text;
  at("trouble").hidden = !text;
}

/* Read aloud by screen readers, not shown. */
function announce(text) { at("spoken").textContent = text; }

/* Pages that came over plain HTTP have no clipboard object. */
async function copyText(text) {
  if (navigator.clipboard && window.isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch (e) { /* not allowed: the old way may be */ }
  }
  const back = document.activeElement, field = element("textarea", "unseen");
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (back) back.focus();
  return done;
}

async function copyFrom(b, text) {
  const done = await copyText(text), was = b.dataset.name || b.textContent;
  b.dataset.name = was;
  b.textContent = done ? "Copied" : "Not allowed";
  setTimeout(() => { b.textContent = was; }, 1500);
}

function saveFile(name, type, text) {
  const a = element("a"), url = URL.createObjectURL(new Blob([text], { type }));
  a.href = url;
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

/* A question with a field (value is text) or without (value is undefined). Resolves to the text, true, or null. */
function askUser(title, text, yes, value) {
  const d = at("asking"), field = at("asking-value");
  at("asking-title").textContent = title;
  at("asking-text").textContent = text;
  at("asking-yes").textContent = yes;
  field.hidden = value === undefined;
  field.value = value || "";
  d.showModal();
  if (!field.hidden) field.select();
  return new Promise(done => {
    const end = answer => { d.close(); done(answer); };
    at("asking-form").onsubmit = e => { e.preventDefault(); end(value === undefined ? true : field.value.trim()); };
    at("asking-no").onclick = () => end(null);
    d.oncancel = () => done(null);      /* Esc; the event of closing comes late, maybe into the next question */
  });
}

/* Calls act at most once in so many milliseconds, the last time included. */
function calmly(milliseconds, act) {
  let due = 0;
  return () => {
    if (!due) due = setTimeout(() => { due = 0; act(); }, milliseconds);
  };
}
