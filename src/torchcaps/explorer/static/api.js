// Questions to this page's own server, and nothing else: pictures travel as base64 of their bytes.

const token = new URLSearchParams(location.search).get("token") ?? "";

// Milliseconds: after which a newer request overtakes one without an answer, and of the pauses after a refusal.
const OVERTAKE = 250, FIRST_PAUSE = 250, LONGEST_PAUSE = 4000;
const pausing = new Set();

// Half of a pause is by chance, so that those who were refused together do not come back together.
const pause = (tries) => Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** tries) * (0.5 + Math.random() / 2);

// One try. An error with `again` may be no error a moment later.
async function once(name, body, stream) {
  const raw = body instanceof Blob;
  const answer = await fetch(`api/${name}`, {
    method: body === undefined ? "GET" : "POST",
    headers: { "x-token": token, "x-stream": stream, "content-type": raw ? "application/octet-stream" : "application/json" },
    body: body === undefined || raw ? body : JSON.stringify(body),
  }).catch(() => { throw Object.assign(new Error("the server does not answer; is torchcaps explore still running?"), { again: "away" }); });
  const found = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw Object.assign(new Error(found.error ?? `the server answered ${answer.status}`), { again: answer.status === 503 && "busy" });
  return found;
}

// A question that is asked once; of a busy server, until it answers.
export async function ask(name, body) {
  const mine = Symbol(name);
  for (let tries = 0; ; tries++) {
    try {
      return await once(name, body, "");
    } catch (error) {
      if (error.again !== "busy") throw error;
      busy(mine, true);
      await new Promise((done) => setTimeout(done, pause(tries)));
    } finally {
      busy(mine, false);
    }
  }
}

// A stream of questions of which the newest counts, and is always answered. A newer one is sent when the one before is
// answered; or after a while, and takes its place in the server's queue. What is refused is tried again, if it is still
// the newest.
export function latest(name, show, fail = problem) {
  const stream = Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  let next = null, sent = 0, shown = 0, tries = 0, earliest = 0, timer = 0;

  async function go() {
    clearTimeout(timer);
    if (!next) return;
    const rest = earliest - performance.now();
    if (rest > 0) { timer = setTimeout(go, rest); return; }
    const now = next, number = ++sent;
    next = null;
    earliest = performance.now() + OVERTAKE;
    try {
      const found = await once(name, now.body, stream);
      busy(stream, false);
      tries = 0;
      if (!found.superseded) earliest = 0;
      if (!found.superseded && number > shown) {
        shown = number;
        show(found, now.extra);
        problem("");
      }
    } catch (error) {
      if (number < sent) return; // a newer one is on its way
      busy(stream, error.again === "busy");
      if (error.again !== "busy") fail(error.message);
      if (error.again) {
        next ??= now;
        earliest = performance.now() + pause(tries++);
      }
    }
    go();
  }
  return (body, extra) => { next = { body, extra }; go(); };
}

export function problem(sentence) {
  const place = document.getElementById("problem");
  if (place.textContent !== sentence) place.textContent = sentence;
  place.hidden = !sentence;
}

function busy(who, whether) {
  if (whether) pausing.add(who);
  else pausing.delete(who);
  document.getElementById("busy").hidden = !pausing.size;
}

export function toText(bytes) {
  let text = "";
  for (let k = 0; k < bytes.length; k += 8192) text += String.fromCharCode(...bytes.subarray(k, k + 8192));
  return btoa(text);
}

export function toBytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}
