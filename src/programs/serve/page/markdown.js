/* Markdown: markdown-it makes tokens, and the tokens become elements here. Raw HTML is text, links lead to the web or
   to mail, pictures are links to them. */

const md = markdownit && markdownit({ html: false, linkify: true });
/* A name like main.py is no address, though .py is a country. */
if (md) md.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });

/* CommonMark takes the asterisks of 2*3*4 as emphasis; between the letters and digits of one word they are text here.
   Chinese, Japanese and Korean have no spaces between words, so beside them only spaces decide. */
const EAST = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\u3000-\u303f\uff00-\uffef]/u;
const IN_WORD = /[\p{L}\p{N}]/u;
if (md) {
  const State = md.inline.State, found = State.prototype.scanDelims;
  State.prototype.scanDelims = function (start, canSplitWord) {
    const d = found.call(this, start, canSplitWord), before = this.src[start - 1] || " ";
    const after = String.fromCodePoint(this.src.codePointAt(start + d.length) || 32);
    if (this.src[start] !== "*") return d;
    if (EAST.test(before) || EAST.test(after))
      return { ...d, can_open: !/\s/.test(after), can_close: !/\s/.test(before) };
    return IN_WORD.test(before) && IN_WORD.test(after) ? { ...d, can_open: false, can_close: false } : d;
  };
}

/* Where the model's text and what is shown of it differ (marks, entities, indents), places are found again from left to
   right. With runs ([end, drafted, end, drafted ...]) the text is put in with its drafted parts as elements. */
class Source {
  constructor(text, runs) {
    this.text = text;
    this.runs = runs && runs.length ? runs : null;
    this.place = 0;
  }
  /* The run that holds a place: its index in runs, or runs.length. */
  runAt(place) {
    let begin = 0, end = this.runs.length / 2;
    while (begin < end) {
      const middle = (begin + end) >> 1;
      if (this.runs[2 * middle] <= place) begin = middle + 1;
      else end = middle;
    }
    return 2 * begin;
  }
  slice(parent, from, to) {
    for (let i = this.runAt(from); from < to; i += 2) {
      const stop = i < this.runs.length ? Math.min(this.runs[i], to) : to, piece = this.text.slice(from, stop);
      const blank = piece.length - piece.trimStart().length;           /* a line under an indent only looks odd */
      if (this.runs[i + 1] && blank < piece.length)
        parent.append(piece.slice(0, blank), element("span", "d", piece.slice(blank)));
      else parent.append(piece);
      from = stop;
    }
  }
  put(parent, shown) {
    if (!this.runs) {
      parent.append(shown);
      return;
    }
    const near = this.text.slice(this.place, this.place + shown.length + 400).indexOf(shown);
    if (near >= 0) {
      this.slice(parent, this.place + near, this.place + near + shown.length);
      this.place += near + shown.length;
      return;
    }
    for (const c of shown) {
      const next = this.text.slice(this.place, this.place + 12).indexOf(c);
      if (next >= 0) this.place += next + c.length;
      if (this.runs[this.runAt(Math.max(0, this.place - 1)) + 1]) parent.append(element("span", "d", c));
      else parent.append(c);
    }
  }
}

/* ---- code ---- */

/* Brings the element up to the text, of which it showed a beginning: whole lines stay. */
function fillCode(code, text, source) {
  const s = code.lines || (code.lines = { nodes: 0, done: 0, mode: null, place: source.place });
  while (code.childNodes.length > s.nodes) code.lastChild.remove();
  source.place = s.place;
  let mode = s.mode;
  for (let from = s.done; from < text.length;) {
    const end = text.indexOf("\n", from), to = end < 0 ? text.length : end + 1;
    const [pieces, next] = codeLine(code.kind, text.slice(from, to), mode);
    for (const [name, piece] of pieces) source.put(name ? code.appendChild(element("span", name)) : code, piece);
    mode = next;
    from = to;
    if (end >= 0) Object.assign(s, { nodes: code.childNodes.length, done: to, mode, place: source.place });
  }
}

function codeBox(info, text, source) {
  const box = element("div", "code"), bar = element("div", "code-bar"), pre = element("pre"), code = element("code");
  const language = md.utils.unescapeAll(info).trim().split(/\s+/)[0];
  if (language) code.className = "language-" + language;
  code.kind = kindOfCode(info);
  pre.tabIndex = 0;
  bar.append(element("span", "soft", language), button("Copy", e => copyFrom(e.target, code.textContent), "quiet"));
  pre.append(code);
  box.append(bar, pre);
  fillCode(code, text, source);
  return box;
}

/* ---- tokens ---- */

const SAFE_LINK = /^(?:https?:\/\/|mailto:)/i;

function linkElement(address, title) {
  const safe = SAFE_LINK.test(address), e = element(safe ? "a" : "span", safe ? "" : "no-link");
  if (safe) {
    e.href = address;
    e.target = "_blank";
    e.rel = "noopener noreferrer nofollow";
  }
  e.title = title || address;
  return e;
}

/* "[ ] " and "[x] " at the beginning of a list's item. */
function taskBox(parent, text) {
  const m = /^\[([ xX])\] /.exec(text), li = parent.tagName === "LI" ? parent : parent.parentElement;
  if (!m || !li || li.tagName !== "LI" || li.textContent) return text;
  const box = element("input");
  box.type = "checkbox";
  box.disabled = true;
  box.checked = m[1] !== " ";
  box.setAttribute("aria-label", box.checked ? "done" : "to do");
  parent.append(box, " ");
  li.classList.add("task");
  return text.slice(m[0].length);
}

function inlineElements(parent, tokens, source) {
  const open = [parent];
  for (const t of tokens) {
    const here = open[open.length - 1];
    if (t.nesting < 0) {
      if (open.length > 1) open.pop();
    } else if (t.nesting > 0) {
      const e = t.type === "link_open" ? linkElement(t.attrGet("href"), t.attrGet("title")) : element(t.tag);
      here.append(e);
      open.push(e);
    } else if (t.type === "text") {
      if (t.content) source.put(here, t === tokens[0] ? taskBox(here, t.content) : t.content);
    } else if (t.type === "code_inline") {
      source.put(here.appendChild(element("code")), t.content);
    } else if (t.type === "hardbreak") {
      here.append(element("br"), "\n");
    } else if (t.type === "softbreak") {
      here.append("\n");
    } else if (t.type === "image") {
      const e = linkElement(t.attrGet("src"), t.attrGet("title"));
      e.classList.add("picture");
      source.put(e, md.renderer.renderInlineAsText(t.children, md.options) || t.attrGet("src"));
      here.append(e);
    } else if (t.content) {
      source.put(here, t.content);
    }
  }
}

function openElement(t) {
  const e = element(t.tag);
  for (const [name, value] of t.attrs || []) {
    const align = name === "style" && /text-align:(left|right|center)/.exec(value);
    if (name === "start") e.start = Number(value);
    else if (align) e.className = align[1];
  }
  return e;
}

function leafElement(t, source) {
  if (t.type === "fence" || t.type === "code_block") return codeBox(t.info || "", t.content, source);
  if (t.type === "hr") return element("hr");
  return element("p", "", t.content);
}

/* The blocks of tokens: [line in which it begins, element, token]. begins: the place of each line in the source. */
function blockElements(tokens, source, begins) {
  const blocks = [], open = [];
  for (const t of tokens) {
    const here = open[open.length - 1];
    if (t.map) source.place = Math.max(source.place, begins[t.map[0]] || 0);
    let e = null;
    if (t.type === "inline") inlineElements(here, t.children, source);
    else if (t.nesting < 0) open.pop();
    else if (t.hidden) open.push(here);
    else e = t.nesting > 0 ? openElement(t) : leafElement(t, source);
    if (!e) continue;
    let outer = e;
    if (e.tagName === "TABLE") {
      outer = element("div", "table");
      outer.tabIndex = 0;
      outer.append(e);
    }
    if (here) here.append(outer);
    else blocks.push([t.map[0], outer, t]);
    if (t.nesting > 0) open.push(e);
  }
  return blocks;
}

/* ---- text that grows ---- */

const shownIn = new WeakMap();        /* of an element: { text, plain, marked, blocks: [{ from, e }] } */

function plainText(text, source) {
  const p = element("p", "plain");
  source.put(p, text);
  return p;
}

/* The code's element can stay when only more lines of it have come. */
function sameCode(old, t, from) {
  const code = old && old.from === from && t.type === "fence" && old.info === t.info && old.e.querySelector("code");
  return code && t.content.startsWith(code.textContent.slice(0, code.lines.done)) ? code : null;
}

function lineBegins(text, from) {
  return [from, ...Array.from(text.slice(from).matchAll(/\r\n?|\n/g), m => from + m.index + m[0].length)];
}

/* The blocks that can still change: the last one, and those before it that only a line ended which was not yet whole,
   and which may go on so that it belongs to them. Takes them from the list and returns the first of them. */
function takeBack(s, sure) {
  let b = null;
  do {
    if (b) b.e.remove();
    b = s.blocks.pop();
  } while (b && b.from > sure && s.blocks.length);
  return b;
}

/* Brings `box` up to the text, of which it showed a beginning. final: no more will come; then also what a link's
   definition at the end changes further up is shown. */
function show(box, text, runs, { plain = !md, marked = false, final = false } = {}) {
  let s = shownIn.get(box);
  const otherwise = !s || s.plain !== plain || s.marked !== marked || !text.startsWith(s.text);
  const again = otherwise || (final && !plain && text.includes("]:"));
  if (!again && s.text === text) return;
  if (again) {
    box.replaceChildren();
    shownIn.set(box, s = { text: "", plain, marked, blocks: [] });
  }
  const old = takeBack(s, s.text.lastIndexOf("\n")), from = old ? old.from : 0;
  const source = new Source(text, marked ? runs : null);
  s.text = text;
  source.place = from;
  const tokens = plain ? [] : md.parse(text.slice(from), {}), kept = tokens[0] && sameCode(old, tokens[0], from);
  if (kept) {
    fillCode(kept, tokens.shift().content, source);
    s.blocks.push(old);
  } else if (old) {
    old.e.remove();
  }
  const begins = lineBegins(text, from);
  const fresh = plain ? [[0, plainText(text, source), {}]] : blockElements(tokens, source, begins);
  s.blocks.push(...fresh.map(([line, e, t]) => ({ from: begins[line], e, info: t.info })));
  box.append(...fresh.map(b => b[1]));
}
