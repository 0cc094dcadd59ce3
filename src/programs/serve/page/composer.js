/* The field at the bottom: grows with its text, takes files, and keeps what was not sent. */

const composer = { files: [], chat: "new", sending: false };
const FILE_MOST = 4 << 20;

function growField(field) {
  field.style.height = "auto";
  field.style.height = field.scrollHeight + 2 + "px";
}

function drawFiles() {
  const list = at("files");
  list.hidden = !composer.files.length;
  list.replaceChildren(...composer.files.map((f, i) => {
    const li = element("li"), remove = button("Remove", () => {
      composer.files.splice(i, 1);
      changedComposer();
      note(`${f.name} is removed`, "Undo", () => { composer.files.splice(i, 0, f); changedComposer(); });
    }, "quiet");
    remove.setAttribute("aria-label", "Remove " + f.name);
    li.append(element("span", "", `${f.name} (${f.text.length.toLocaleString("en")} characters)`), remove);
    return li;
  }));
}

const keepComposer = calmly(250, () => keepDraft(composer.chat, at("say").value, composer.files));

function changedComposer() {
  drawFiles();
  growField(at("say"));
  keepComposer();
}

function setComposer(text, files) {
  at("say").value = text;
  composer.files = files;
  drawFiles();
  growField(at("say"));
}

/* The draft of another conversation comes into the field. */
function openComposer(chat, draft) {
  if (composer.chat !== chat) keepDraft(composer.chat, at("say").value, composer.files);
  composer.chat = chat;
  setComposer(draft.text, draft.files);
}

/* A message that could not be answered comes back, in front of what was typed since. */
async function giveBack(chat, m) {
  const here = composer.chat === chat;
  const d = here ? { text: at("say").value, files: composer.files } : await draftOf(chat);
  const text = d.text && d.text !== m.content ? m.content + "\n\n" + d.text : m.content;
  const files = [...m.files, ...d.files];
  if (here) setComposer(text, files);
  await keepDraft(chat, text, files);
}

/* The text of a file, or a sentence why not. */
async function readText(file) {
  if (file.size > FILE_MOST) throw new Error(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB; 4 MB is the most`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return text;
  } catch (e) { /* said below */ }
  throw new Error(`${file.name} is no text in UTF-8; only text can be attached`);
}

async function attach(files) {
  for (const file of files) {
    try {
      composer.files.push({ name: file.name, text: await readText(file) });
    } catch (e) {
      note(e.message);
    }
  }
  changedComposer();
  at("say").focus();
}
