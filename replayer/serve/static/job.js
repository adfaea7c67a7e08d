// A job as it goes on: server-sent events of the API, shown with textContent alone.
const OVER = ["complete", "failed", "cancelled", "ended", "interrupted", "undone"];
const count = (number) => number.toLocaleString("en-US");

function timeText(timestamp) {
  const time = new Date(timestamp ?? NaN);
  const year = time.getUTCFullYear();
  return year >= 1 && year <= 9999 ? time.toISOString() : String(timestamp ?? "-");
}

function cell(row, text, kind) {
  const made = row.insertCell();
  made.textContent = text;
  made.className = kind;
  return made;
}

function linked(made, href) {
  const link = document.createElement("a");
  link.href = href;
  link.textContent = made.textContent;
  made.replaceChildren(link);
}

function showProgress(page, job) {
  const { done, all, unit } = job.progress;
  const state = page.querySelector("[data-state]");
  if (state.textContent !== job.state) {
    state.textContent = job.state;
    state.className = `state ${job.state}`;
  }
  page.querySelector("[data-progress]").textContent = `${count(done)}${all ? ` of ${count(all)}` : ""} ${unit}`;
  const bar = page.querySelector("[data-bar]");
  bar.hidden = OVER.includes(job.state);
  if (all) {
    bar.value = Math.min(done / all, 1);
  }
  const rate = page.querySelector("[data-rate]");
  if (job.seconds) {
    const speed = (done - (job.records_before || 0)) / job.seconds;
    const left = all && speed ? `, about ${count(Math.ceil(Math.max(all - done, 0) / speed))} s left` : "";
    rate.textContent = `${count(Math.round(speed))} records/s${job.rate ? `, at most ${job.rate}` : ""}` +
      (job.state === "running" ? left : "");
  }
}

function showFailure(page, job) {
  const box = page.querySelector("[data-failure]");
  box.hidden = !job.failure;
  if (job.failure) {
    const what = document.createElement("strong");
    what.textContent = job.failure.error;
    box.replaceChildren(what, ` ${job.failure.why} ${job.failure.do}`);
  }
}

function showLanes(body, job) {
  body.replaceChildren();
  for (const lane of job.lanes) {
    const row = body.insertRow();
    cell(row, String(lane.partition), "n");
    cell(row, count(lane.written), "n");
    cell(row, `${count(lane.done)} of ${count(lane.all)}`, "n");
    const bar = document.createElement("progress");
    bar.max = lane.all || 1;
    bar.value = lane.all ? lane.done : 1;
    cell(row, "", "").append(bar);
  }
}

function showFound(body, job) {
  const found = job.result ? job.result.found : [];
  for (const each of found.slice(body.rows.length)) {
    const row = body.insertRow();
    cell(row, String(each.partition), "n");
    linked(cell(row, String(each.offset), "n"), `/topics/${body.dataset.topic}/${each.partition}/${each.offset}`);
    cell(row, timeText(each.timestamp_ms), "");
    cell(row, each.key, "text");
    cell(row, each.value, "text value");
  }
}

function showSearch(page, job) {
  showFound(page.querySelector("[data-found]"), job);
  page.querySelector("[data-more]").hidden = !(job.result && job.result.has_more);
  const skipped = page.querySelector("[data-skipped]");
  skipped.replaceChildren();
  for (const each of job.result ? job.result.skipped : []) {
    const line = document.createElement("p");
    line.className = "failure";
    line.textContent = `partition ${each.partition}, offsets [${each.from}..${each.to}) could not be read: ${each.reason}`;
    skipped.append(line);
  }
}

function showResult(box, job) {
  if (!job.result || box.childElementCount) {
    return;
  }
  const list = document.createElement("dl");
  list.className = "facts";
  for (const [name, value] of Object.entries(job.result)) {
    if (name === "lanes" || value === null || (Array.isArray(value) && !value.length)) {
      continue;
    }
    const fact = document.createElement("div");
    const title = document.createElement("dt");
    const text = document.createElement("dd");
    title.textContent = name.replaceAll("_", " ");
    text.textContent = typeof value === "number" ? count(value) : Array.isArray(value) ? value.join("; ") : String(value);
    if (name === "verdict") {
      text.className = `verdict ${value}`;
    }
    if (name === "report") {
      const link = document.createElement("a");
      link.href = `/verify/${value}`;
      link.textContent = value;
      text.replaceChildren(link);
    }
    fact.append(title, text);
    list.append(fact);
  }
  for (const lane of job.result.lanes || []) {
    for (const fault of lane.faults) {
      const line = document.createElement("p");
      line.className = "failure";
      line.textContent = fault;
      list.after(line);
      box.append(line);
    }
  }
  box.prepend(list);
}

// Browsers have few connections to one server, so a page that nobody sees holds none.
export function watchJob(page) {
  let source = document.hidden ? null : watched(page);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      source?.close();
    } else if (!source || !page.dataset.over) {
      source?.close();
      source = watched(page);
    }
  });
}

function watched(page) {
  const source = new EventSource(`/api/v1/jobs/${page.dataset.job}/events`);
  source.onmessage = (event) => {
    const job = JSON.parse(event.data);
    showProgress(page, job);
    showFailure(page, job);
    for (const form of page.querySelectorAll("[data-action]")) {
      form.hidden = !job.actions.includes(form.dataset.action);
    }
    if (page.dataset.kind === "replay") {
      showLanes(page.querySelector("[data-lanes]"), job);
    } else if (page.dataset.kind === "search") {
      showSearch(page, job);
    } else {
      showResult(page.querySelector("[data-result]"), job);
    }
    if (OVER.includes(job.state)) {
      page.dataset.over = job.state;
      source.close();
    }
  };
  source.onerror = () => {
    const isGone = source.readyState === EventSource.CLOSED;
    const error = isGone ? "There are no more updates of this job." : "The server does not answer.";
    showFailure(page, { failure: { error, why: "What is shown may be out of date.", do: "Load the page again." } });
  };
  return source;
}
