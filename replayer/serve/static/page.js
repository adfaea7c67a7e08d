// What the pages do beyond links and forms: copying, the coverage map, and jobs as they go on.
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

for (const map of document.querySelectorAll("[data-coverage]")) {
  seekByClick(map);
}

for (const job of document.querySelectorAll("[data-job]")) {
  watchJob(job);
}
