// What the pages do beyond links and forms: copying, the coverage map, refreshing, and jobs as they go on.
import { watchJob } from "./job.js";
import { seekByClick } from "./coverage.js";

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    if (!navigator.clipboard) { // browsers have none on pages of other machines without TLS
      getSelection().selectAllChildren(button.parentElement.querySelector("code"));
      return;
    }
    await navigator.clipboard.writeText(button.dataset.copy);
    const before = button.textContent;
    button.textContent = "copied";
    setTimeout(() => { button.textContent = before; }, 1500);
  });
}

// The part of a page is replaced, and not the page: it stays scrolled, and what somebody marks stays marked.
for (const part of document.querySelectorAll("[data-refresh]")) {
  setInterval(async () => {
    if (document.hidden || !getSelection().isCollapsed) {
      return;
    }
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-refresh]");
      if (!fresh) { // logged out, or an error
        location.reload();
        return;
      }
      part.replaceChildren(...fresh.childNodes);
    } catch {
      const note = part.querySelector("[data-silent]") || document.createElement("p");
      note.dataset.silent = "";
      note.className = "failure";
      note.textContent = "The server does not answer: what is shown may be out of date.";
      part.prepend(note);
    }
  }, part.dataset.refresh * 1000);
}

for (const map of document.querySelectorAll("[data-coverage]")) {
  seekByClick(map);
}

for (const job of document.querySelectorAll("[data-job]")) {
  watchJob(job);
}
