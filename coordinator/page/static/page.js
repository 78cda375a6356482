// Keeps what is shown fresh. Everything is rendered, and escaped, by the server; without this the page still works.
"use strict";

// Puts a part in the place of the one with its id; what is open, typed and focused stays so.
function place(id, html, into) {
  const template = document.createElement("template");
  template.innerHTML = html;
  const made = template.content.firstElementChild;
  if (!made) return;
  const old = document.getElementById(id);
  if (!old) {
    if (into) into.append(made);
    return;
  }
  carryOver(old, made);
  if (made.isEqualNode(old)) return;
  keepFocus(old, () => old.replaceWith(made));
}

// The number of calls that wait for an answer, in the header.
function showAsking(count) {
  const shown = document.getElementById("asking");
  if (!shown) return;
  shown.textContent = String(count);
  shown.hidden = !count;
}

// A list of forms: what is there stays where it is, so that no click meets a button that has just moved below it.
function stay(part, fresh) {
  const made = [...fresh.children];
  for (const old of [...part.children]) {
    if (!old.matches("form")) old.remove();
    else if (!made.some((one) => one.id === old.id)) retire(old);
  }
  for (const one of made) {
    if (!one.matches("form") || !document.getElementById(one.id)) part.append(one);
  }
}

function retire(form) {
  if (form.classList.contains("gone")) return;
  form.classList.add("gone");
  form.querySelector("fieldset").disabled = true;
  const said = document.createElement("p");
  said.className = "note";
  said.textContent = "Answered, or its time is over.";
  form.append(said);
}

function carryOver(old, made) {
  for (const details of old.querySelectorAll("details[open][id]")) {
    const same = made.querySelector("#" + CSS.escape(details.id));
    if (same) same.open = true;
  }
  for (const input of old.querySelectorAll("input[id]")) {
    const same = made.querySelector("#" + CSS.escape(input.id));
    if (same && input.type !== "hidden") same.value = input.value;
  }
}

// Changes a part; what had the focus in it, by its id or by its place below one, has it afterwards.
function keepFocus(part, change) {
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const home = focused && focused.closest("[id]");
  const place = home ? [...home.querySelectorAll(focused.tagName)].indexOf(focused) : -1;
  change();
  const again = home && document.getElementById(home.id);
  const same = again && (home === focused ? again : again.querySelectorAll(focused.tagName)[place]);
  if (!same) return;
  same.focus({ preventScroll: true });
  if (focused.selectionStart != null && same.setSelectionRange) {
    same.setSelectionRange(focused.selectionStart, focused.selectionEnd);
  }
}

function isAtEnd() {
  const page = document.documentElement;
  return page.scrollHeight > page.clientHeight && page.scrollTop + page.clientHeight >= page.scrollHeight - 40;
}

function follow(change) {
  const wasAtEnd = isAtEnd();
  change();
  if (wasAtEnd) window.scrollTo(0, document.documentElement.scrollHeight);
}

// A part that is asked for anew every few seconds, while somebody can see it.
async function refresh(part) {
  if (document.hidden || part.querySelector("details[open]")) return;
  let answer;
  try {
    answer = await fetch(location.href, { headers: { "X-Fragment": "1" }, credentials: "same-origin" });
  } catch {
    part.classList.add("stale");
    return;
  }
  part.classList.toggle("stale", !answer.ok);
  if (answer.status === 401) location.reload();
  if (!answer.ok) return;
  const asking = answer.headers.get("x-asking");
  if (asking !== null) showAsking(Number(asking));
  const fresh = part.cloneNode(false);
  fresh.innerHTML = await answer.text();
  if ("stay" in part.dataset) stay(part, fresh);
  else keepFocus(part, () => part.replaceChildren(...fresh.childNodes));
}

for (const part of document.querySelectorAll("[data-refresh]")) {
  const again = () => refresh(part).finally(() => setTimeout(again, 1000 * Number(part.dataset.refresh)));
  setTimeout(again, 1000 * Number(part.dataset.refresh));
}

// A session's page: parts come as they change, and the model's words as it says them.
const main = document.querySelector("main[data-stream]");
if (main) {
  const blocks = document.getElementById("blocks");
  const source = new EventSource(main.dataset.stream);
  source.addEventListener("open", () => main.classList.remove("stale"));
  source.addEventListener("error", () => {
    main.classList.add("stale");
    // Refused, not cut off: the login may have ended, and the page says what to do.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 3000);
  });
  source.addEventListener("part", (event) => {
    const part = JSON.parse(event.data);
    follow(() => place(part.id, part.html, part.id.startsWith("block-") ? blocks : null));
  });
  source.addEventListener("said", (event) => {
    const said = JSON.parse(event.data);
    const words = document.getElementById("said-" + Number(said.step));
    if (words) follow(() => words.append(said.text));
  });
  source.addEventListener("asking", (event) => showAsking(JSON.parse(event.data).count));
  source.addEventListener("over", () => source.close());
  source.addEventListener("left", () => location.reload());
}
