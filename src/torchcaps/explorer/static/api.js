// Questions to this page's own server, and nothing else: pictures travel as base64 of their bytes.

const token = new URLSearchParams(location.search).get("token") ?? "";

export async function ask(name, body) {
  const raw = body instanceof Blob;
  const answer = await fetch(`api/${name}`, {
    method: body === undefined ? "GET" : "POST",
    headers: { "x-token": token, "content-type": raw ? "application/octet-stream" : "application/json" },
    body: body === undefined || raw ? body : JSON.stringify(body),
  }).catch(() => { throw new Error("the server does not answer; is torchcaps explore still running?"); });
  const found = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw new Error(found.error ?? `the server answered ${answer.status}`);
  return found;
}

// One request at a time; of those that come meanwhile only the latest is sent when it is done.
export function latest(name, show, fail = problem) {
  let running = false, next = null;
  return async function send(body, extra) {
    next = { body, extra };
    if (running) return;
    running = true;
    while (next) {
      const now = next;
      next = null;
      try {
        const found = await ask(name, now.body);
        show(found, now.extra);
        problem("");
      } catch (error) {
        fail(error.message);
      }
    }
    running = false;
  };
}

export function problem(sentence) {
  const place = document.getElementById("problem");
  if (place.textContent !== sentence) place.textContent = sentence;
  place.hidden = !sentence;
}

export function toText(bytes) {
  let text = "";
  for (let k = 0; k < bytes.length; k += 8192) text += String.fromCharCode(...bytes.subarray(k, k + 8192));
  return btoa(text);
}

export function toBytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}
