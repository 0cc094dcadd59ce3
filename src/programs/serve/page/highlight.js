/* Colours of code: comments, strings, numbers, words of the language, names that are called. It goes line by line with
   the mode in which the line before ended, so that code which is still arriving is only ever looked at once. */

const CODE_WORDS = {
  c: "auto bool break case catch char class const constexpr continue default delete do double else enum extern "
    + "false final float for fn friend func go goto if impl import in inline int interface internal let long "
    + "match mod mut namespace new nil null nullptr operator override package private protected pub public range "
    + "register return self short signed sizeof static struct super switch template this throw trait true try "
    + "type typedef typename union unsafe unsigned use using val var virtual void volatile when where while "
    + "yield defer select chan map dyn crate move ref async await",
  js: "async await break case catch class const continue debugger default delete do else enum export extends "
    + "false finally for from function get if implements import in instanceof interface let new null of return "
    + "set static super switch this throw true try type typeof undefined var void while with yield readonly "
    + "declare namespace as",
  python: "and as assert async await break case class continue def del elif else except False finally for from "
    + "global if import in is lambda match None nonlocal not or pass raise return self True try while with yield",
  shell: "case do done elif else esac export fi for function if in local return set shift source then until while "
    + "exit",
  ruby: "alias and begin break case class def defined do else elsif end ensure false for if in module next nil not "
    + "or redo rescue retry return self super then true undef unless until when while yield require "
    + "attr_accessor",
  sql: "add all alter and any as asc begin between by case check column commit constraint create cross database "
    + "default delete desc distinct drop else end exists foreign from full group having if in index inner insert "
    + "into is join key left like limit not null offset on or order outer primary references right rollback "
    + "select set table then union unique update values view when where with",
  lua: "and break do else elseif end false for function goto if in local nil not or repeat return then true until "
    + "while",
  json: "true false null",
  yaml: "true false null yes no on off",
  css: "important",
  make: "ifeq ifneq ifdef ifndef else endif include define endef export override",
  html: "",
};
const CODE_NAMES = {
  c: "c h cpp c++ cc hpp java kotlin kt rust rs go golang swift csharp cs scala dart zig proto cuda glsl php",
  js: "js javascript ts typescript jsx tsx mjs node",
  python: "python py python3 pyi",
  shell: "sh bash zsh shell console fish",
  ruby: "ruby rb elixir perl pl r julia",
  sql: "sql mysql postgresql sqlite",
  lua: "lua haskell hs ada vhdl",
  json: "json jsonc json5",
  yaml: "yaml yml toml ini conf dockerfile docker properties",
  css: "css scss less",
  make: "make makefile cmake",
  html: "html xml svg vue xhtml markup",
  diff: "diff patch",
};
const CODE_KINDS = new Map(Object.entries(CODE_NAMES).flatMap(([kind, names]) => names.split(" ").map(n => [n, kind])));
const CODE_SETS = {};
const LINE_COMMENT = { c: "//", js: "//", css: "//", json: "//", sql: "--", lua: "--" };
const LONGEST_LINE = 4000;

function kindOfCode(info) { return CODE_KINDS.get((info || "").trim().split(/[\s{,:]/)[0].toLowerCase()) || ""; }

function isCodeWord(kind, word) {
  if (!CODE_SETS[kind]) CODE_SETS[kind] = new Set((CODE_WORDS[kind] || "").split(" "));
  return CODE_SETS[kind].has(kind === "sql" ? word.toLowerCase() : word);
}

/* What begins at a place of a line and may go on behind its end: [its end, class]. */
function openingAt(kind, line, i) {
  const two = line.slice(i, i + 2), three = line.slice(i, i + 3);
  if ((kind === "c" || kind === "js" || kind === "css" || kind === "sql") && two === "/*") return ["*/", "c"];
  if (kind === "python" && (three === "\"\"\"" || three === "'''")) return [three, "s"];
  if (kind === "html" && line.startsWith("<!" + "--", i)) return ["--" + ">", "c"];
  if (kind === "js" && line[i] === "`") return ["`", "s"];
  return null;
}

const WORD_AT = /[\p{L}_$][\p{L}\p{N}_$]*/uy;
const NUMBER_AT = /(?:0[xX][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\w*/y;
const STRING_AT = { "\"": /"(?:[^"\\]|\\.)*"?/y, "'": /'(?:[^'\\]|\\.)*'?/y, "`": /`[^`]*`?/y };

function matchAt(pattern, line, i) {
  pattern.lastIndex = i;
  const m = pattern.exec(line);
  return m ? m[0] : "";
}

/* The piece that begins at i: [class, text, mode behind it]. */
function codePiece(kind, line, i) {
  const open = openingAt(kind, line, i), mark = LINE_COMMENT[kind] || (kind === "html" ? "" : "#"), c = line[i];
  if (open) {
    const begin = i + (open[1] === "c" ? 2 : open[0].length), end = line.indexOf(open[0], begin);
    return end < 0 ? [open[1], line.slice(i), open] : [open[1], line.slice(i, end + open[0].length), null];
  }
  if (mark && line.startsWith(mark, i) && (mark !== "#" || i === 0 || /\s/.test(line[i - 1])))
    return ["c", line.slice(i), null];
  if (kind === "c" && c === "#" && !line.slice(0, i).trim()) return ["k", matchAt(/#\s*\w*/y, line, i), null];
  if (kind === "html") {
    const tag = matchAt(/<\/?[\w:-]+|\/?>/y, line, i);
    if (tag) return ["k", tag, null];
  }
  const string = STRING_AT[c] && matchAt(STRING_AT[c], line, i);
  if (string && !(c === "'" && kind === "html")) return ["s", string, null];
  const word = matchAt(WORD_AT, line, i);
  if (word) return [isCodeWord(kind, word) ? "k" : line[i + word.length] === "(" ? "f" : "", word, null];
  const number = matchAt(NUMBER_AT, line, i);
  return number ? ["n", number, null] : ["", c, null];
}

/* Pieces [class, text] of a line with its end, and the mode of the next line. */
function codeLine(kind, line, mode) {
  if (!kind || line.length > LONGEST_LINE) return [[["", line]], mode];
  if (kind === "diff") return [[[{ "+": "a", "-": "r", "@": "c" }[line[0]] || "", line]], null];
  const pieces = [];
  let i = 0;
  if (mode) {
    const end = line.indexOf(mode[0]);
    i = end < 0 ? line.length : end + mode[0].length;
    pieces.push([mode[1], line.slice(0, i)]);
    if (end < 0) return [pieces, mode];
    mode = null;
  }
  while (i < line.length) {
    const [name, text, next] = codePiece(kind, line, i), last = pieces[pieces.length - 1];
    if (last && last[0] === name) last[1] += text;
    else pieces.push([name, text]);
    i += text.length;
    mode = next;
  }
  return [pieces, mode];
}
