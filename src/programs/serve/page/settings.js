/* Settings: kept in this browser, the key for this tab only. Empty fields are the server's defaults. */

const NUMBERS = ["temperature", "max_tokens", "top_p", "top_k", "min_p", "seed", "repetition_penalty", "rep_window",
                 "frequency_penalty", "presence_penalty"];
const SETTINGS = [...NUMBERS, "system", "thinking", "stop_texts", "schema", "theme", "markdown", "colours"];

function settingsNow() {
  return Object.fromEntries(SETTINGS.map(id => [id, at(id).type === "checkbox" ? at(id).checked : at(id).value]));
}

function useSettings(set) {
  for (const id of SETTINGS) {
    if (!(id in set)) continue;
    if (at(id).type === "checkbox") at(id).checked = Boolean(set[id]);
    else at(id).value = String(set[id]);
  }
  showSettings();
}

function keepSettings() {
  try {
    localStorage.setItem("ratoon.settings", JSON.stringify(settingsNow()));
  } catch (e) { /* full or forbidden: then they are not kept */ }
  session.set("key", at("key").value);
}

function recallSettings() {
  try {
    useSettings(JSON.parse(localStorage.getItem("ratoon.settings") || "{}"));
  } catch (e) {
    showSettings();
  }
  at("key").value = session.get("key") || "";
}

/* What settings change on the page itself. */
function showSettings() {
  const theme = at("theme").value;
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  at("marks").setAttribute("aria-pressed", String(at("colours").checked));
  at("markdown").disabled = !md;
  at("schema-wrong").textContent = schemaNow().wrong || "";
}

function schemaNow() {
  const text = at("schema").value.trim();
  if (!text || at("schema-row").hidden) return {};
  try {
    return { schema: JSON.parse(text) };
  } catch (e) {
    return { wrong: "The schema is not JSON: " + e.message };
  }
}

function resetSettings() {
  const before = settingsNow();
  at("settings-form").reset();
  changedSettings();
  note("Settings are back at the defaults", "Undo", () => { useSettings(before); changedSettings(); });
}

function changedSettings() {
  showSettings();
  keepSettings();
  redraw();
}

/* The request's settings, of those that the server and the model can honour. */
function sampling() {
  const body = {}, stop = at("stop_texts").value.split("\n").filter(s => s), { schema, wrong } = schemaNow();
  if (wrong) throw new Error(wrong);
  for (const id of NUMBERS) if (at(id).value !== "") body[id] = Number(at(id).value);
  if (stop.length) body.stop = stop;
  if (schema !== undefined) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  if (at("thinking").value && !at("thinking-row").hidden) body.enable_thinking = at("thinking").value === "on";
  return body;
}

/* The same seed, or no chance at all: the same text again. */
function alwaysTheSame() {
  const t = at("temperature").value;
  return at("seed").value !== "" || Number(t === "" ? server.defaults.temperature : t) < 1e-5;
}

function openSettings(open) {
  at("settings").hidden = !open;
  at("settings-open").setAttribute("aria-expanded", String(open));
  document.body.classList.toggle("with-settings", open);
  if (open) at("settings-close").focus();
  else at("settings-open").focus();
}
