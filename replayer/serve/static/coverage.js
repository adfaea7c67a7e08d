// The coverage map: a click reads the records at that place, a drag looks closer.
const LEAST_DRAG = 6;

function placeOf(picture, clientX) {
  const box = picture.getBoundingClientRect();
  const x = (clientX - box.left) * (picture.viewBox.baseVal.width / box.width);
  const { left, width, start, end } = picture.dataset;
  const share = Math.min(Math.max((x - Number(left)) / Number(width), 0), 1);
  return { x, share, place: Math.floor(Number(start) + share * (Number(end) - Number(start))) };
}

function mark(picture, from, to) {
  let chosen = picture.querySelector(".chosen");
  if (!chosen) {
    chosen = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    chosen.setAttribute("class", "chosen");
    chosen.setAttribute("y", "0");
    chosen.setAttribute("height", String(picture.viewBox.baseVal.height));
    picture.append(chosen);
  }
  chosen.setAttribute("x", String(Math.min(from, to)));
  chosen.setAttribute("width", String(Math.abs(to - from)));
}

export function seekByClick(map) {
  const picture = map.querySelector("svg");
  let began = null;
  picture.addEventListener("pointerdown", (event) => {
    began = event.button === 0 ? placeOf(picture, event.clientX) : null;
  });
  picture.addEventListener("pointermove", (event) => {
    if (began && event.buttons) {
      mark(picture, began.x, placeOf(picture, event.clientX).x);
    }
  });
  picture.addEventListener("pointerup", (event) => {
    if (!began) {
      return;
    }
    const ended = placeOf(picture, event.clientX);
    const row = event.target.closest(".row");
    const scale = picture.dataset.scale;
    if (Math.abs(ended.x - began.x) >= LEAST_DRAG && ended.place !== began.place) {
      const asked = new URLSearchParams(location.search);
      asked.set("scale", scale);
      asked.set("from", String(Math.min(began.place, ended.place)));
      asked.set("to", String(Math.max(began.place, ended.place)));
      location.search = asked.toString();
    } else if (row) {
      const time = new Date(ended.place);
      const place = scale === "offset" || Number.isNaN(time.getTime()) ? String(ended.place) : time.toISOString();
      location.href = `/topics/${row.dataset.topic}/${row.dataset.partition}?at=${encodeURIComponent(place)}`;
    }
    began = null;
  });
}
